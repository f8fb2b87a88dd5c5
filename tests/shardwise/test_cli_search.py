"""``tune``, ``sweep`` and ``trace`` from the command line, on a small search."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shardwise.cli.main import run

ASKED = "tune llama 3 8b on 8 h100 with batch 64 and sequence length 4096"
SWEEP = ["--model", "llama-3-8b", "--cluster", "h100:1x8", "--gbs", "64", "--seq-len", "4096"]


def answer(args: list[str], capsys: pytest.CaptureFixture[str], *, code: int = 0) -> Any:
    assert run([*args, "--json"]) == code, capsys.readouterr().err
    captured = capsys.readouterr()
    assert captured.err == ""
    return json.loads(captured.out)


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one finished small search."""
    folder = tmp_path_factory.mktemp("runs") / "small"
    assert run(["tune", ASKED, "--budget-calls", "12", "--out", str(folder), "--json"]) == 0
    return folder


def test_a_search_answers_as_the_contract_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    document = answer(["tune", ASKED, "--tp", "2", "--budget-calls", "10", "--out", str(folder)], capsys)
    assert document["run"] == str(folder)
    assert Path(document["trace"]).is_file()
    assert document["llm"] == "heuristic"
    assert document["oracle_calls"] <= 10
    assert document["stopped_because"]
    best, baseline = document["best"], document["baseline"]
    assert best["recipe"]["tp"] == 2
    assert best["projection"]["memory"]["verdict"] != "out of memory"
    gain = best["projection"]["tokens_per_s_per_gpu"] / baseline["projection"]["tokens_per_s_per_gpu"] - 1
    assert document["gain_pct"] == pytest.approx(100 * gain, abs=0.01)
    # The recipe in the run folder is the winner, and every command reads it.
    projected = answer(["project", str(folder / "best.yaml")], capsys)
    assert projected == best["projection"]


def test_the_configuration_in_the_run_folder_is_the_winner(
    searched: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (configuration,) = (path for path in searched.iterdir() if path.suffix == ".sh")
    assert answer(["project", str(configuration)], capsys) == answer(
        ["project", str(searched / "best.yaml")], capsys
    )


def test_a_finished_run_resumes_to_its_result(searched: Path, capsys: pytest.CaptureFixture[str]) -> None:
    again = answer(["tune", "--resume", str(searched)], capsys)
    assert again == json.loads((searched / "result.json").read_text())


def test_resuming_takes_no_other_wishes(searched: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tune", "--resume", str(searched), "--budget-calls", "99"]) == 2
    assert "budget_calls" in capsys.readouterr().err
    assert run(["tune", "tune llama 3 70b on 64 h100", "--resume", str(searched)]) == 2
    assert "asked something else" in capsys.readouterr().err


def test_an_interrupted_run_is_told_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    folder = tmp_path / "run"
    monkeypatch.setattr("shardwise.agent.oracle.Oracle.score", lambda *_: interrupted(None))
    assert run(["tune", ASKED, "--out", str(folder), "--json"]) == 130
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"shardwise tune --resume {folder}" in captured.err.replace("\n", "")
    monkeypatch.undo()
    document = answer(["tune", "--resume", str(folder)], capsys)
    assert document["best"] is not None


def test_people_get_the_whole_story(
    searched: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["tune", "--resume", str(searched)]) == 0
    out = capsys.readouterr().out
    for wanted in (
        "llama-3-8b on h100:1x8",
        "over the baseline",
        "Rejected before scoring",
        "Stopped because",
    ):
        assert wanted in out
    assert str(searched / "trace.jsonl") in "".join(line.strip() for line in out.splitlines())


def test_words_that_mean_nothing_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["tune", f"{ASKED} xyzzy", "--budget-calls", "2", "--out", str(tmp_path / "run"), "--json"]
    assert run(args) == 0
    assert "xyzzy" in capsys.readouterr().err


def test_nothing_fits_is_a_negative_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fields = ["--model", "llama-3.1-405b", "--cluster", "h100:1x8", "--budget-calls", "3"]
    document = answer(["tune", *fields, "--out", str(tmp_path / "run")], capsys, code=1)
    assert document["best"] is None


def test_traces_are_shown_verified_replayed_and_compared(
    searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verified = answer(["trace", "verify", str(searched)], capsys)
    assert verified["intact"] is True
    assert run(["trace", "show", str(searched)]) == 0
    assert "Asked: tune llama 3 8b" in capsys.readouterr().out
    events = answer(["trace", "show", str(searched)], capsys)
    assert len(events) == verified["events"]
    replayed = answer(["trace", "replay", str(searched / "trace.jsonl")], capsys)
    assert replayed["equal"] is True
    assert replayed["first_difference"] is None
    assert answer(["trace", "diff", str(searched), str(searched)], capsys)["equal"] is True

    lines = (searched / "trace.jsonl").read_text().splitlines()
    changed = tmp_path / "changed.jsonl"
    changed.write_text("\n".join([*lines[:3], lines[3].replace('"round":0', '"round":1'), *lines[4:]]) + "\n")
    assert answer(["trace", "verify", str(changed)], capsys, code=1)["intact"] is False
    assert answer(["trace", "diff", str(searched), str(changed)], capsys, code=1)["first_difference"]


def test_a_sweep_answers_as_the_contract_says(capsys: pytest.CaptureFixture[str]) -> None:
    document = answer(["sweep", *SWEEP, "--axes", "tp,mbs", "--fix", "recompute=full", "--top", "3"], capsys)
    assert set(document) == {"space", "legal", "fits", "seconds", "projections_per_s", "best"}
    assert len(document["best"]) == 3
    assert {row["recipe"]["recompute"] for row in document["best"]} == {"full"}
    assert run(["sweep", *SWEEP, "--axes", "tp,mbs", "--recompute", "full"]) == 0
    assert "projections/s" in capsys.readouterr().out


@pytest.mark.parametrize("framework", ["megatron-lm", "primus"])
def test_what_is_exported_is_imported(
    framework: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = [*SWEEP, "--tp", "2", "--recompute", "full", "--mbs", "2"]
    path = tmp_path / "configuration"
    written = answer(["export", *recipe, "--to", framework, "--out", str(path)], capsys)
    assert written["framework"] == framework
    assert path.read_text() == written["text"]
    read = answer(["import", str(path)], capsys)
    assert read["framework"] == framework
    back = tmp_path / "recipe.json"
    back.write_text(json.dumps(read["recipe"]))
    wanted = answer(["project", *recipe], capsys)
    assert answer(["project", str(back)], capsys) == wanted
    assert answer(["project", str(path)], capsys) == wanted


def test_an_illegal_recipe_is_not_exported(capsys: pytest.CaptureFixture[str]) -> None:
    document = answer(["export", *SWEEP, "--tp", "3", "--to", "megatron-lm"], capsys, code=1)
    assert document["legal"] is False


def test_validate_answers_for_every_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cases.jsonl"
    cases = Path(__file__).parent.parent / "data" / "cases-sample.jsonl"
    lines = cases.read_text().splitlines() if cases.exists() else []
    if not lines:
        pytest.skip("no sample of measured cases in tests/data")
    path.write_text("\n".join(lines) + "\n")
    document = answer(["validate", str(path)], capsys)
    assert len(document["cases"]) == document["summary"]["n"] == len(lines)
    assert run(["validate", str(path)]) == 0
    assert "throughput error" in capsys.readouterr().out


def test_catalog_documents_name_their_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert all(model["source"] for model in answer(["catalog", "models"], capsys))
    assert all(gpu["sources"] for gpu in answer(["catalog", "gpus"], capsys))
    assert all(cluster["source"] for cluster in answer(["catalog", "clusters"], capsys))
    assert answer(["catalog", "models", "Mixtral 8x22B"], capsys)["name"] == "mixtral-8x22b"
