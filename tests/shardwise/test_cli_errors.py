"""Bad input is one clear line on stderr and exit code 2; nothing else is printed."""

from __future__ import annotations

import errno
import io
import subprocess
import sys
from pathlib import Path

import pytest

from shardwise.cli import project
from shardwise.cli.main import run

LLAMA = ["--model", "llama-3-8b", "--cluster", "h100:1x8"]


def refused(args: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of error that ``args`` get."""
    code = run(args)
    captured = capsys.readouterr()
    assert code == 2, captured.err
    assert captured.out == ""
    assert captured.err.startswith("shardwise: ")
    assert captured.err.count("\n") == 1
    assert "Traceback" not in captured.err
    return captured.err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["project", "--model", "no-such-model", "--cluster", "h100:1x8"], ["no-such-model", "known"]),
        (["project", "--model", "llama-3-9b", "--cluster", "h100:1x8"], ["llama-3-8b"]),
        (["project", "--model", "llama-3-8b", "--cluster", "h100:0x8"], ["cluster", "0"]),
        (["project", "--model", "llama-3-8b", "--cluster", "h100:1x9"], ["9", "8"]),
        (["project", "--model", "llama-3-8b", "--cluster", "h1000:1x8"], ["h1000", "h100"]),
        (["project", "--model", "llama-3-8b"], ["cluster", "missing"]),
        (["project"], ["model", "missing", "RECIPE"]),
        (["project", "no-such-file.yaml"], ["no-such-file.yaml"]),
        (["project", *LLAMA, "--tp", "0"], ["tp"]),
        (["project", *LLAMA, "--tp", "two"], ["--tp", "project --help"]),
        (["project", *LLAMA, "--recompute", "some"], ["recompute", "selective"]),
        (["project", *LLAMA, "--no-such-option"], ["--no-such-option", "project --help"]),
        (["no-such-command"], ["no-such-command"]),
        (
            ["memory", *LLAMA, "--gbs", "8", "--seq-len", "64", "--measure", "real"],
            ["measure", "real", "fake"],
        ),
        (
            ["memory", *LLAMA, "--gbs", "8", "--seq-len", "64", "--measure", "fake", "--stage", "1"],
            ["stage = 1", "0"],
        ),
        (["memory", *LLAMA, "--gbs", "8", "--seq-len", "64", "--stage", "0"], ["stage = 0", "--measure"]),
        (
            [
                "memory",
                *LLAMA,
                "--gbs",
                "8",
                "--seq-len",
                "64",
                "--measure",
                "fake",
                "--precision",
                "fp8-blockwise",
            ],
            ["precision = fp8-blockwise", "bf16"],
        ),
        (["sweep", *LLAMA, "--axes", "tp,nonsense"], ["nonsense"]),
        (["sweep", *LLAMA, "--fix", "tp"], ["FIELD=VALUE"]),
        (["sweep", *LLAMA, "--fix", "tpp=1"], ["tpp", "tp"]),
        (["sweep", *LLAMA, "--fix", "tp=x"], ["tp", "whole number"]),
        (["sweep", *LLAMA, "--tp", "1", "--fix", "tp=2"], ["tp", "twice"]),
        (["export", *LLAMA, "--to", "no-such-framework"], ["no-such-framework", "megatron-lm"]),
        (["import", "no-such-file.sh"], ["no-such-file.sh"]),
        (["validate", "no-such-file.jsonl"], ["no-such-file.jsonl"]),
        (["trace", "show", "no-such-run"], ["no-such-run"]),
        (["catalog", "gpus", "h1000"], ["h1000", "h100"]),
        (["tune", "tune", "no-such-model", "on", "8", "h100"], ["model"]),
        (["tune", *LLAMA, "--budget-time", "soon"], ["--budget-time", "30m"]),
        (["tune", *LLAMA, "--llm", "nobody:model"], ["nobody"]),
        (["tune", "tune llama-3-8b on 32 unobtainium"], ["cluster", "unobtainium"]),
        (["tune", *LLAMA, "--gbs", "9" * 25], ["gbs", "1000000000"]),
        (["tune", *LLAMA, "--base-url", "http://h:1/v1"], ["base_url", "heuristic"]),
        (["tune", "--resume", "a", "--out", "b"], ["--resume", "--out"]),
        (["tune", *LLAMA, "--from", "megatron-lm"], ["--from", "RECIPE"]),
        (["project", "--model", "m" * 400, "--cluster", "h100:1x8"], ["unknown model 'mmm", "known"]),
        (["export", *LLAMA, "--to", "primus", "--out", "/"], ["--out", "cannot be written"]),
        (["trace", "verify", "t" * 400], ["TRACE", "no such trace"]),
        (["tune", "--resume", "r" * 400], ["resume", "request.json"]),
        (["export", *LLAMA, "--to", "primus", "--out", "o" * 254], ["--out", "cannot be written"]),
    ],
    ids=lambda value: " ".join(value)[:60],
)
def test_one_line_that_names_what_is_wrong(
    args: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(args, capsys)
    assert [word for word in words if word not in line] == []


def test_stdin_is_never_a_path(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(__file__.encode())))
    assert "not recognised" in refused(["import", "-"], capsys)


@pytest.mark.parametrize("text", ["{: [", "model: [", "just words", "- a\n- list", "", "model: x\nmodel: y"])
def test_a_broken_file_is_one_line(
    text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(text.encode()))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert "stdin" in refused(["project", "-"], capsys)


def test_an_unknown_field_names_the_nearest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("model: llama-3-8b\ncluster: h100:1x8\nmsb: 2\n")
    line = refused(["project", str(path)], capsys)
    assert "msb" in line
    assert "mbs" in line


def test_a_missing_key_names_the_variable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    args = ["tune", *LLAMA, "--llm", "openai:some-model", "--out", str(tmp_path / "run")]
    assert "OPENAI_API_KEY" in refused(args, capsys)


def test_an_internal_error_is_one_line_and_70(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> None:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr("shardwise.cli.inputs.read", broken)
    monkeypatch.delenv("SHARDWISE_DEBUG", raising=False)
    assert run(["project", *LLAMA]) == 70
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "RuntimeError: two lines" in err
    assert "SHARDWISE_DEBUG=1" in err
    monkeypatch.setenv("SHARDWISE_DEBUG", "1")
    assert run(["project", *LLAMA]) == 70
    assert "Traceback" in capsys.readouterr().err
    assert project.project.__name__ == "project"


def test_a_full_disk_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("shardwise.cli.inputs.read", full)
    monkeypatch.delenv("SHARDWISE_DEBUG", raising=False)
    assert "No space left on device" in refused(["project", *LLAMA], capsys)


def test_a_closed_stdout_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", None)
        assert run(["project", *LLAMA]) == 2
    assert capsys.readouterr().err.startswith("shardwise: stdout is closed")


def test_an_interrupt_is_130(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("shardwise.cli.inputs.read", stopped)
    assert run(["project", *LLAMA]) == 130
    assert capsys.readouterr().err == "shardwise: interrupted\n"


def test_a_reader_that_goes_away_is_quiet() -> None:
    command = [sys.executable, "-m", "shardwise", "catalog", "gpus", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) in (0, 141)


def test_measuring_names_the_package_that_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from shardwise.engine.measure import report

    monkeypatch.setattr(report, "_installed", lambda package: package != "megatron.core")
    line = refused(["memory", *LLAMA, "--gbs", "8", "--seq-len", "64", "--measure", "fake"], capsys)
    assert "megatron.core" in line
    assert "pip install 'shardwise[oracles]'" in line
