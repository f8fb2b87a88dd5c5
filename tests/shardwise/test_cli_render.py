"""What people read: complete, within the page, without colour codes where nobody sees colours."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from io import BytesIO, TextIOWrapper
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from shardwise.cli.main import run
from shardwise.cli.render import units
from shardwise.cli.render.bars import bar
from shardwise.cli.render.legal import legal
from shardwise.cli.render.memory import memory
from shardwise.cli.render.progress import Tally
from shardwise.cli.render.sweep import sweep
from shardwise.cli.render.tune import tune
from shardwise.cli.render.validation import validation

GIB = 1024**3
ITEMS = ("weights", "gradients", "optimizer", "activations", "temporary", "communication", "overhead")


def text(renderable: RenderableType, width: int = 80) -> str:
    """What a page of ``width`` columns shows."""
    console = Console(width=width, color_system=None, highlight=False, markup=False)
    with console.capture() as captured:
        console.print(renderable)
    lines = captured.get().splitlines()
    assert max(len(line.rstrip()) for line in lines) <= width
    return captured.get()


def memory_document(stages: int, peak: int) -> dict[str, Any]:
    rows = [
        {"stage": n, **dict.fromkeys(ITEMS, (n + 1) * GIB), "total": 7 * (n + 1) * GIB} for n in range(stages)
    ]
    return {
        "verdict": "fits",
        "peak_bytes": rows[peak]["total"],
        "capacity_bytes": 288 * GIB,
        "peak_stage": peak,
        "first_step_bytes": 5 * GIB,
        "allocated_bytes": 6 * GIB,
        "reserved_bytes": 7 * GIB,
        "load_bytes": 5 * GIB,
        "peaks": [
            {"stage": n, "moment": "loss", "temporary": {"logits and loss": GIB}} for n in range(stages)
        ],
        "stages": rows,
    }


def projection_document(tokens: float, stages: int = 4) -> dict[str, Any]:
    times = {"attention": 3.0, "moe": 6.0, "tp_comm": 0.0, "ep_comm": 0.5, "cp_comm": 0.0, "pp_comm": 0.1}
    times |= {"dp_comm_exposed": 0.2, "bubble": 0.2}
    return {
        "legal": True,
        "violations": [],
        "step_time_s": 10.0,
        "tokens_per_s_per_gpu": tokens,
        "tflops_per_gpu": 512.0,
        "mfu": 0.41,
        "interval80": {"tokens_per_s_per_gpu": [0.9 * tokens, 1.1 * tokens]},
        "bubble_fraction": 0.02,
        "time_breakdown_s": times,
        "provenance": {"measured": 0.0, "interpolated": 0.0, "simulated": 1.0},
        "memory": memory_document(stages, stages - 1),
    }


LAUNCH = {
    "framework": "primus",
    "configuration": "runs/one/m.primus.yaml",
    "where": "from a checkout of the framework",
    "launch": "torchrun \\\n  --nproc-per-node 8 train.py",
}


def searched(best: dict[str, Any] | None, baseline: dict[str, Any]) -> dict[str, Any]:
    """What a search answers; ``best`` is None where nothing fits."""
    winner = {"recipe": {"model": "m", "cluster": "c", "tp": 2, "recompute": "full"}, "projection": best}
    return {
        "run": "runs/one",
        "trace": "runs/one/trace.jsonl",
        "llm": "heuristic",
        "best": winner if best else None,
        "baseline": {"recipe": {"model": "m", "cluster": "c", "tp": 1}, "projection": baseline},
        "gain_pct": 33.3 if best else None,
        "oracle_calls": 60,
        "rejected_by_memory": 7,
        "rejected_illegal": 2,
        "stopped_because": "the budget of 60 projections is spent",
        "wall_s": 1.5,
    }


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("command", ["project", "memory", "legal"])
def test_commands_stay_on_the_page(
    command: str, width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    recipe = ["--model", "deepseek-v3", "--cluster", "h100:32x8", "--tp", "4", "--pp", "8", "--ep", "16"]
    run([command, *recipe, "--gbs", "2048"])
    out = capsys.readouterr().out
    assert "deepseek-v3 on h100:32x8" in out
    assert "\x1b" not in out
    assert max(len(line) for line in out.splitlines()) <= width
    assert all(line == line.rstrip() for line in out.splitlines())


@pytest.mark.parametrize("command", ["models", "gpus", "clusters"])
def test_catalog_tables_keep_their_names_on_a_narrow_page(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["catalog", command]) == 0
    out = capsys.readouterr().out
    wanted = {"models": "mixtral-8x22b", "gpus": "mi355x", "clusters": "dgx-h100"}[command]
    assert wanted in out
    assert max(len(line) for line in out.splitlines()) <= 80


def test_a_terminal_without_unicode_gets_plain_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(BytesIO(), encoding="ascii"))
    assert set(bar(0.5)) == {"#"}


def test_many_stages_keep_both_ends_and_the_peak() -> None:
    out = text(memory(memory_document(64, 30)))
    rows = [
        line.split()[0] for line in out.splitlines() if line.strip() and line.split()[0].strip(">").isdigit()
    ]
    assert rows == ["0", "1", "2", "3", ">30", "60", "61", "62", "63"]
    assert out.count("...") == 2
    assert "fullest in: loss (logits and loss 1.0 GiB)" in out


def test_violations_say_what_to_type() -> None:
    violation: Mapping[str, Any] = {
        "rule": "attention-heads",
        "message": "tp=3 does not divide num_attention_heads=64; nearest legal: tp=2 or tp=4",
        "fields": ["tp"],
        "framework": "megatron-core",
        "nearest": {"tp": 2, "sequence_parallel": False, "recompute_modules": ["core_attn", "mlp"]},
    }
    out = text(legal({"legal": False, "violations": [violation]}))
    assert "--tp 2 --no-sequence-parallel --recompute-modules core_attn,mlp" in out
    assert "megatron-core" in out
    assert "1 rule broken" in out
    layout = {**violation, "nearest": {"pipeline_model_parallel_layout": "Et|(tt|)*30mL"}}
    quoted = text(legal({"legal": False, "violations": [layout]}))
    assert "--pipeline-model-parallel-layout 'Et|(tt|)*30mL'" in quoted


def test_a_sweep_without_anything_that_fits_says_so() -> None:
    base = {"model": "m", "cluster": "c"}
    counts = {"space": 10, "legal": 5, "fits": 0, "seconds": 0.1, "projections_per_s": 0.0, "best": []}
    assert "Nothing that is legal fits" in text(sweep(counts, base=base))


def test_a_sweep_shows_what_differs_and_what_all_share() -> None:
    recipes = [{"model": "m", "cluster": "c", "tp": tp, "pp": 4} for tp in (1, 2)]
    best = [
        {"recipe": recipe, "tokens_per_s_per_gpu": 100.0 / (1 + n), "peak_mem_gib": 7.0}
        for n, recipe in enumerate(recipes)
    ]
    counts = {"space": 10, "legal": 5, "fits": 2, "seconds": 0.1, "projections_per_s": 20.0, "best": best}
    out = text(sweep(counts, base={"model": "m", "cluster": "c"}))
    assert "all of the best: pp=4" in out
    assert "tp=2" in out
    assert "50.0%" in out


@pytest.mark.parametrize("width", [80, 120])
def test_a_search_tells_the_whole_story(width: int) -> None:
    document = searched(projection_document(4000.0), projection_document(3000.0, stages=2))
    document["baseline_fits"], document["baseline_source"] = False, "a table in a paper"
    document["rejections"] = {"memory": 7, "world-size": 2}
    changes = [
        {
            "fields": {"tp": (1, 2), "sequence_parallel": (False, True)},
            "step": {"gain_pct": 12.5, "peak_bytes": 200 * GIB},
            "without": {"gain_pct": -9.0, "peak_bytes": 300 * GIB, "problem": "does not fit"},
        },
        {
            "fields": {"recompute": ("none", "full")},
            "step": {"problem": "illegal: some-rule"},
            "without": {"problem": "illegal: some-rule"},
        },
    ]
    out = text(tune(document, changes, LAUNCH), width)
    for wanted in (
        "+33.3% over the baseline",
        "m on c",
        "tp=2",
        "over the baseline, which does not fit",
        "a table in a paper",
        "tp 1 -> 2",
        "sequence_parallel off -> on",
        "+12.5%",
        "200.0",
        "-9.0%, does not fit",
        "illegal:",
        "7 by memory, 2 illegal",
        "world-size 2",
        "the budget of 60 projections is spent",
        "bottleneck: moe",
        "Memory per pipeline stage, GiB",
        "from a checkout of the framework",
        "--nproc-per-node 8 train.py",
        "runs/one/trace.jsonl",
        "runs/one/m.primus.yaml",
        "runs/one/best.yaml",
        "shardwise trace show runs/one",
    ):
        assert wanted in out, wanted


def test_a_title_is_not_squeezed_into_the_width_of_its_table() -> None:
    document = searched(projection_document(4000.0, stages=1), projection_document(3000.0, stages=1))
    assert "\nMemory per pipeline stage, GiB\n" in text(tune(document, [], LAUNCH))


def test_where_nothing_fits_the_least_that_was_needed_is_said() -> None:
    document = {**searched(None, projection_document(3000.0)), "baseline_source": "the leanest plain recipe"}
    document |= {"oracle_calls": 1}
    out = text(tune(document, [], None))
    assert "the leanest plain recipe: 28.0 of 288.0 GiB\n  tp=1" in out
    assert "1 projection in" in out


def test_the_progress_line_does_not_call_best_what_does_not_fit() -> None:
    tally = Tally()
    figures = {"fits": False, "tokens_per_s_per_gpu": 5000.0}
    tally.add(SimpleNamespace(kind="projection", figures=figures))
    tally.add(SimpleNamespace(kind="rejection"))
    assert tally.line() == "1 scored, 1 rejected, nothing that fits yet"
    tally.add(SimpleNamespace(kind="projection", figures={"fits": True, "tokens_per_s_per_gpu": 4000.0}))
    assert tally.line() == "2 scored, 1 rejected, best 4,000 tokens/s/GPU"


def test_validation_counts_what_was_not_scored() -> None:
    cases = [
        {"id": "a", "status": "ok", "metric": "tokens_per_s_per_gpu", "error_pct": -3.0, "reason": None},
        {"id": "b", "status": "unsupported", "metric": None, "error_pct": None, "reason": "hybrid model"},
    ]
    figures = {
        "median_abs_error_pct": 3.0,
        "p90_abs_error_pct": 3.0,
        "max_abs_error_pct": 3.0,
        "bias_pct": -3.0,
    }
    summary = {
        "n": 2,
        "scored": 1,
        **figures,
        "interval80_coverage": 1.0,
        "memory": {"n": 0, "median_abs_error_pct": None, "p90_abs_error_pct": None, "bias_pct": None},
        "oom": {"n": 0, "caught": 0, "ran": 1, "false_alarms": 0},
        "by_group": {"gpu": {"h100": {"n": 2, "scored": 1, **figures}}},
    }
    out = text(validation({"cases": cases, "summary": summary}))
    assert "2, of which scored 1" in out
    assert "hybrid model" in out
    assert "gpu: h100" in out


@given(st.floats(min_value=0, max_value=1e7))
def test_seconds_keep_their_size(value: float) -> None:
    number, unit = units.seconds(value).split()
    scale = {"s": 1.0, "ms": 1e-3, "us": 1e-6}[unit]
    assert float(number.replace(",", "")) * scale == pytest.approx(value, rel=0.06, abs=6e-7)


def test_units_have_a_word_for_nothing() -> None:
    assert units.gib(None) == units.seconds(None) == units.count(None) == units.percent(None) == "-"
    assert units.word(True) == "on"
    assert units.word([]) == "none"
