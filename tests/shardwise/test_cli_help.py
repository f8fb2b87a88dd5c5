"""Every command explains itself."""

from __future__ import annotations

import pytest

from shardwise.cli.main import run

COMMANDS = [
    ["tune"],
    ["project"],
    ["memory"],
    ["legal"],
    ["sweep"],
    ["validate"],
    ["export"],
    ["import"],
    ["trace", "show"],
    ["trace", "verify"],
    ["trace", "replay"],
    ["trace", "diff"],
    ["catalog", "models"],
    ["catalog", "gpus"],
    ["catalog", "clusters"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_has_json_and_an_example(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command, "--help"]) == 0
    out = capsys.readouterr().out
    assert "--json" in out
    assert f"Example:\n    shardwise {' '.join(command)}" in out


@pytest.mark.parametrize("group", [[], ["trace"], ["catalog"]], ids=["root", "trace", "catalog"])
def test_a_group_alone_shows_its_commands(group: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(group) == 0
    out = capsys.readouterr().out
    listed = {command[len(group)] for command in COMMANDS if command[: len(group)] == group}
    assert all(f"\n  {name} " in out for name in listed)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("shardwise 0.")
