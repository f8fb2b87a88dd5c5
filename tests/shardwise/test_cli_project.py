"""``project``, ``memory`` and ``legal`` answer as the contract says, in JSON and for people."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from shardwise.cli.main import run
from shardwise.engine.results import MEMORY_ITEMS, TIME_ITEMS

FITS = [
    *("--model", "llama-3-8b", "--cluster", "h100:1x8", "--tp", "2", "--mbs", "1"),
    *("--gbs", "64", "--seq-len", "4096", "--recompute", "full"),
]
TOO_BIG = ["--model", "llama-3.1-405b", "--cluster", "h100:1x8", "--gbs", "64", "--seq-len", "4096"]
ILLEGAL = [
    *("--model", "mixtral-8x22b", "--cluster", "mi355x:4x8", "--tp", "5", "--pp", "4"),
    *("--gbs", "128", "--seq-len", "8192"),
]


def answer(args: list[str], capsys: pytest.CaptureFixture[str], *, code: int = 0) -> Any:
    assert run(args) == code
    captured = capsys.readouterr()
    assert captured.err == ""
    return json.loads(captured.out)


def test_a_projection_has_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    document = answer(["project", *FITS, "--json"], capsys)
    assert document["legal"] is True
    assert document["violations"] == []
    times = document["time_breakdown_s"]
    assert tuple(times) == TIME_ITEMS
    assert sum(times.values()) == pytest.approx(document["step_time_s"], rel=1e-9)
    tokens = 64 * 4096 / document["step_time_s"] / 8
    assert document["tokens_per_s_per_gpu"] == pytest.approx(tokens)
    low, high = document["interval80"]["tokens_per_s_per_gpu"]
    assert low < tokens < high
    assert sum(document["provenance"].values()) == pytest.approx(1)
    for stage in document["memory"]["stages"]:
        assert sum(stage[item] for item in MEMORY_ITEMS) == stage["total"]


def test_memory_is_the_memory_of_the_projection(capsys: pytest.CaptureFixture[str]) -> None:
    whole = answer(["project", *FITS, "--json"], capsys)
    assert answer(["memory", *FITS, "--json"], capsys) == whole["memory"]


def test_what_does_not_fit_exits_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["memory", *TOO_BIG, "--json"], capsys, code=1)["verdict"] == "out of memory"
    assert answer(["project", *TOO_BIG, "--json"], capsys, code=1)["memory"]["verdict"] == "out of memory"


def test_an_illegal_recipe_still_answers(capsys: pytest.CaptureFixture[str]) -> None:
    document = answer(["project", *ILLEGAL, "--json"], capsys, code=1)
    assert document["legal"] is False
    assert document["step_time_s"] is None
    assert document["memory"] is None
    broken = answer(["legal", *ILLEGAL, "--json"], capsys, code=1)
    assert broken["violations"] == document["violations"]
    assert {"rule", "message", "fields"} <= set(broken["violations"][0])
    assert answer(["memory", *ILLEGAL, "--json"], capsys, code=1)["verdict"] is None
    assert answer(["legal", *FITS, "--json"], capsys) == {"legal": True, "violations": []}


def test_the_same_input_gives_the_same_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    outputs = []
    for _ in range(2):
        run(["project", *FITS, "--json"])
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]


def test_file_stdin_and_options_agree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {"model": "llama-3-8b", "cluster": "h100:1x8", "tp": 2, "gbs": 64, "seq_len": 4096}
    wanted = answer(["project", *FITS, "--json"], capsys)
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(fields))
    assert answer(["project", str(path), "--recompute", "full", "--json"], capsys) == wanted
    text = "".join(f"{name}: {value}\n" for name, value in {**fields, "recompute": "full"}.items())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert answer(["project", "-", "--json"], capsys) == wanted


def test_an_option_wins_over_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("model: llama-3-8b\ncluster: h100:1x8\ntp: 8\ngbs: 64\nseq_len: 4096\nrecompute: full\n")
    wanted = answer(["project", *FITS, "--json"], capsys)
    assert answer(["project", str(path), "--tp", "2", "--json"], capsys) == wanted


def test_gpus_is_another_spelling_of_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    wanted = answer(["project", *FITS, "--json"], capsys)
    spelled = ["--gpus" if word == "--cluster" else "8 H100" if word == "h100:1x8" else word for word in FITS]
    assert answer(["project", *spelled, "--json"], capsys) == wanted


@pytest.mark.parametrize(
    "extra",
    ["--no-sequence-parallel", "--attention-backend unfused", "--recompute-num-layers 4", "--mbs 2"],
)
def test_every_kind_of_option_reaches_the_recipe(extra: str, capsys: pytest.CaptureFixture[str]) -> None:
    plain = answer(["project", *FITS, "--json"], capsys)
    assert answer(["project", *FITS, *extra.split(), "--json"], capsys) != plain
