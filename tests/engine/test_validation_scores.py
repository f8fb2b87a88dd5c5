"""Validation: every case gets a verdict, and the figures are what the contract says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardwise.engine import validation
from shardwise.engine.cases import Case, read_cases, to_recipe
from shardwise.engine.cases.labels import is_megatron, memory_reading, trust_flags
from shardwise.engine.errors import ConfigError
from shardwise.engine.projection import project
from shardwise.engine.recipe import Recipe
from shardwise.engine.scores import Row, summary
from shardwise.engine.validation import validate

SAMPLE = Path(__file__).parents[1] / "data" / "cases-sample.jsonl"


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return validate([SAMPLE])


@pytest.fixture(scope="module")
def rows(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in result["cases"]}


def test_no_case_is_dropped_and_order_is_the_files(result: dict[str, Any]) -> None:
    ids = [case.id for case in read_cases(SAMPLE)]
    assert [row["id"] for row in result["cases"]] == ids
    assert result["summary"]["n"] == len(ids)
    assert sum(result["summary"]["statuses"].values()) == len(ids)
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_statuses_have_reasons(rows: dict[str, dict[str, Any]]) -> None:
    statuses = {key: row["status"] for key, row in rows.items() if row["status"] != "ok"}
    assert statuses == {
        "hand-illegal": "illegal",
        "hand-lora": "unsupported",
        "hand-hybrid": "unsupported",
        "hand-zero-bubble": "unsupported",
        "hand-broken": "error",
        "cases-sample.jsonl:13": "error",
    }
    assert rows["hand-illegal"]["reason"].startswith("world-size: ")
    for key, row in rows.items():
        assert (row["reason"] is None) == (row["status"] == "ok"), key
        assert (row["predicted"] is None) == (row["status"] != "ok"), key


def test_the_best_metric_is_chosen(rows: dict[str, dict[str, Any]]) -> None:
    assert {key: row["metric"] for key, row in rows.items() if row["status"] == "ok"} == {
        "hand-step": "step_time_s",
        "hand-tokens-rates-disagree": "tokens_per_s_per_gpu",
        "hand-tflops-only": "tflops_per_gpu",
        "hand-mfu-only-suspect": "mfu_pct",
        "hand-oom": None,
        "hand-memory-only": None,
        "hand-uneven-layout": "tflops_per_gpu",
    }


def test_errors_are_in_throughput_and_follow_from_the_printed_figures(
    rows: dict[str, dict[str, Any]],
) -> None:
    for row in rows.values():
        if row["metric"] is None:
            assert row["error_pct"] is None
            assert row["inside_interval80"] is None
            continue
        predicted, measured = row["predicted"][row["metric"]], row["measured"][row["metric"]]
        ratio = measured / predicted if row["metric"] == "step_time_s" else predicted / measured
        assert row["error_pct"] == pytest.approx(100 * (ratio - 1), abs=1e-6)


def test_predictions_are_the_projections(rows: dict[str, dict[str, Any]]) -> None:
    case = next(case for case in read_cases(SAMPLE) if case.id == "hand-step")
    recipe = to_recipe(case)
    assert isinstance(recipe, Recipe)
    projection = project(recipe)
    predicted = rows["hand-step"]["predicted"]
    assert predicted["step_time_s"] == projection.step_time_s
    assert predicted["tokens_per_s_per_gpu"] == projection.tokens_per_s_per_gpu
    # Megatron-LM of unknown release counts as we do.
    assert predicted["tflops_per_gpu"] == pytest.approx(projection.tflops_per_gpu)
    assert projection.memory is not None
    assert predicted["peak_mem_gib"] == projection.memory.peak_bytes / 2**30
    assert projection.interval80 is not None
    actual = 128 * 8192 / 10.5 / 8
    low, high = projection.interval80
    assert rows["hand-step"]["inside_interval80"] == (low <= actual <= high)


def test_doubts_are_kept_as_flags(rows: dict[str, dict[str, Any]]) -> None:
    assert rows["hand-mfu-only-suspect"]["flags"] == ["suspect", "low-trust"]
    assert rows["hand-tokens-rates-disagree"]["flags"] == ["rates-disagree"]
    assert rows["hand-step"]["flags"] == []
    assert "gbs=16: not stated" in rows["hand-mfu-only-suspect"]["assumptions"]


def test_out_of_memory_rows_and_memory_only_rows_are_scored(
    result: dict[str, Any], rows: dict[str, dict[str, Any]]
) -> None:
    assert rows["hand-oom"]["predicted"]["oom"] is True
    oom = result["summary"]["oom"]
    assert (oom["n"], oom["caught"]) == (1, 1)
    assert oom["ran"] == 6
    assert rows["hand-memory-only"]["memory_error_pct"] is not None
    assert result["summary"]["memory"]["n"] == 2


def test_workers_and_progress_do_not_change_the_answer(result: dict[str, Any]) -> None:
    seen: list[tuple[int, int]] = []
    again = validate([SAMPLE], jobs=2, progress=lambda done, total: seen.append((done, total)))
    assert json.dumps(again) == json.dumps(result)
    assert seen == [(i + 1, 13) for i in range(13)]


def test_an_engine_fault_is_that_cases_error(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Iterator[int] = iter(range(100))

    def faulty(recipe: Recipe, **options: Any) -> Any:
        if next(calls) == 1:
            raise ZeroDivisionError("made up")
        return project(recipe, **options)

    monkeypatch.setattr(validation, "project", faulty)
    found = validate([SAMPLE])["cases"]
    assert found[1]["status"] == "error"
    assert found[1]["reason"] == "ZeroDivisionError: made up"
    assert found[2]["status"] == "ok"


def test_foreign_frameworks_are_asked_structural_rules_only() -> None:
    data = next(case for case in read_cases(SAMPLE) if case.id == "hand-step").model_dump()
    data["parallel"]["tp"], data["parallel"]["dp"], data["parallel"]["sequence_parallel"] = 8, 1, False
    data["options"]["tp_comm_overlap"] = True
    assert "tp-overlap" in (validation.score(Case.model_validate(data)).reason or "")
    data["framework"]["name"] = "nanotron"
    assert validation.score(Case.model_validate(data)).status == "ok"
    data["parallel"]["tp"] = 5
    assert "world-size" in (validation.score(Case.model_validate(data)).reason or "")


def test_summary_statistics() -> None:
    def row(error: float | None, inside: bool | None = None, **more: Any) -> Row:
        return Row("x", {"kind": "dense" if error and error > 0 else "moe"}, {}, error_pct=error,
                   inside_interval80=inside, **more)  # fmt: skip

    made = [
        row(10.0, True, verdict="fits"),
        row(-20.0, False, verdict="out of memory", memory_error_pct=-8.0),
        row(30.0, True, verdict="tight", memory_error_pct=4.0),
        row(None, verdict="tight", out_of_memory=True),
        row(None, verdict="fits", out_of_memory=True),
        row(None).ended("unsupported", "because"),
    ]
    total = summary(made)
    assert (total["n"], total["scored"]) == (6, 3)
    assert total["median_abs_error_pct"] == 20.0
    assert total["p90_abs_error_pct"] == pytest.approx(28.0)
    assert (total["max_abs_error_pct"], total["bias_pct"]) == (30.0, 10.0)
    assert total["interval80_coverage"] == pytest.approx(2 / 3)
    assert total["memory"] == {
        "n": 2, "median_abs_error_pct": 6.0, "p90_abs_error_pct": pytest.approx(7.6), "bias_pct": -2.0,
    }  # fmt: skip
    assert total["by_group"]["kind"]["moe"]["oom"] == {"n": 2, "caught": 1, "ran": 1, "false_alarms": 1}
    assert total["oom"] == {"n": 2, "caught": 1, "ran": 3, "false_alarms": 1}
    assert total["by_group"]["kind"]["dense"]["median_abs_error_pct"] == 20.0
    assert summary([])["median_abs_error_pct"] is None


@pytest.mark.parametrize(
    ("notes", "expected"),
    [
        ("Memory is an nvidia-smi GB reading (integer), fullest GPU seen", ("device", "worst")),
        (
            "Peak = max over ranks of torch max_memory_allocated (GiB); max reserved 70 GiB",
            ("allocated", "worst"),
        ),
        ("Peak memory is torchtitan's log value (torch max reserved, GiB)", ("reserved", "worst")),
        ("Peak memory is as logged by the benchmark, first pipeline stage rank", ("reserved", "first")),
        ("peak = mem-max-allocated-bytes of the logging (last) rank", ("allocated", "last")),
        ("GiB of the XLA pool", ("allocated", "worst")),
        ("", ("reserved", "worst")),
    ],
)
def test_which_memory_a_source_means(notes: str, expected: tuple[str, str]) -> None:
    assert memory_reading(Case(id="x", notes=notes)) == expected


def test_labels() -> None:
    def of(name: str) -> bool:
        return is_megatron(Case.model_validate({"id": "x", "framework": {"name": name}}))

    assert [of(n) for n in ("Megatron-LM", "NeMo 2", "Primus/Megatron-LM", "Megatron-Bridge")] == [True] * 4
    assert [of(n) for n in ("Megatron-DeepSpeed", "Primus/TorchTitan", "nanotron", "NeMo AutoModel")] == [
        False
    ] * 4
    assert trust_flags(Case(id="x", notes="below SUSPECT", assumed=("gbs",))) == ("suspect", "assumed: gbs")
    assert trust_flags(Case(id="x", notes="a low number, BELOW")) == ()


def test_bad_jobs_and_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="jobs = 0"):
        validate([SAMPLE], jobs=0)
    with pytest.raises(ConfigError, match="cannot be read"):
        validate([tmp_path / "none.jsonl"])
