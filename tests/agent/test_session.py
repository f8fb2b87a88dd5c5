"""Searches in run folders: determinism, budgets, resumption after a kill at any moment, replay."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from agent_scripts import Interrupted, interrupted_at, small_request

from shardwise.agent.replay import replay_run
from shardwise.agent.request import TuneRequest
from shardwise.agent.session import tune
from shardwise.engine import legality
from shardwise.engine.errors import ConfigError
from shardwise.engine.recipe_io import load_recipe
from shardwise.memory_filter import filter_recipe
from shardwise.traces import read_trace, verify
from shardwise.traces.compare import diff


def comparable(result):
    """A result without what may differ between equal runs."""
    data = result.as_json()
    return {key: value for key, value in data.items() if key not in ("run", "trace", "wall_s")}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """One uninterrupted search."""
    out = tmp_path_factory.mktemp("plain") / "run"
    return tune(small_request(), out=out, text="tune it"), out


def test_the_best_is_legal_fits_and_beats_the_baseline(plain):
    result, out = plain
    best = load_recipe(result.best["recipe"])
    assert not legality.check(best)
    assert filter_recipe(best, small_request().margin).reason(0) is None
    assert result.gain_pct > 0
    assert result.oracle_calls <= 24
    assert result.stopped_because
    assert json.loads((out / "result.json").read_text()) == result.as_json()
    assert verify(out).intact


def test_two_runs_agree_and_their_traces_are_equal(plain, tmp_path):
    first, out = plain
    second = tune(small_request(), out=tmp_path / "again", text="tune it")
    assert comparable(second) == comparable(first)
    assert diff(out, tmp_path / "again") is None


@pytest.mark.parametrize("call", [1, 11, 18])
def test_a_killed_run_resumes_without_losing_or_repeating_a_trial(plain, tmp_path, call):
    first, out = plain
    dying, before = interrupted_at(call)
    with pytest.raises(Interrupted):
        tune(small_request(), out=tmp_path / "run", text="tune it", projector=dying)
    living, after = interrupted_at(10**9)
    result = tune(resume=tmp_path / "run", projector=living)
    assert not set(before) & set(after), "a trial was scored twice"
    assert len(before) + len(after) == first.oracle_calls
    assert comparable(result) == comparable(first)
    assert diff(out, tmp_path / "run") is None
    assert verify(tmp_path / "run").intact


@pytest.mark.parametrize("harm", ["missing", "junk"])
def test_an_unusable_checkpoint_is_rebuilt_from_trials_and_trace(plain, tmp_path, harm):
    first, out = plain
    dying, before = interrupted_at(14)
    with pytest.raises(Interrupted):
        tune(small_request(), out=tmp_path / "run", text="tune it", projector=dying)
    for file in tmp_path.glob("run/checkpoint.sqlite*"):
        file.unlink()
    if harm == "junk":
        (tmp_path / "run" / "checkpoint.sqlite").write_bytes(b"no database " * 500)
    living, after = interrupted_at(10**9)
    result = tune(resume=tmp_path / "run", projector=living)
    assert not set(before) & set(after)
    assert comparable(result) == comparable(first)
    assert diff(out, tmp_path / "run") is None


def test_kill_9_of_a_real_process(plain, tmp_path):
    first, out = plain
    script = (
        "import sys; from agent_scripts import small_request; from shardwise.agent.session import tune\n"
        "import time; from shardwise.engine.projection import project\n"
        "def slow(recipe):\n    time.sleep(0.05); return project(recipe)\n"
        "tune(small_request(), out=sys.argv[1], text='tune it', projector=slow)\n"
    )
    here = str(Path(__file__).parent)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([here, *sys.path])}
    child = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "run")], env=env)
    trials = tmp_path / "run" / "trials.jsonl"
    deadline = time.monotonic() + 60
    while not (trials.exists() and trials.read_bytes().count(b"\n") >= 5):
        assert time.monotonic() < deadline
        assert child.poll() is None
        time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    child.wait()
    result = tune(resume=tmp_path / "run")
    keys = [json.loads(line)["key"] for line in trials.read_text().splitlines()]
    assert len(keys) == len(set(keys)) == first.oracle_calls
    assert comparable(result) == comparable(first)
    assert diff(out, tmp_path / "run") is None


def test_a_lost_trace_is_told_again_from_the_known_scores(plain, tmp_path):
    first, out = plain
    dying, before = interrupted_at(14)
    with pytest.raises(Interrupted):
        tune(small_request(), out=tmp_path / "run", text="tune it", projector=dying)
    (tmp_path / "run" / "trace.jsonl").unlink()
    living, after = interrupted_at(10**9)
    assert comparable(tune(resume=tmp_path / "run", projector=living)) == comparable(first)
    assert not set(before) & set(after)
    assert diff(out, tmp_path / "run") is None
    assert verify(tmp_path / "run").intact


def changed_request(run: Path) -> None:
    text = (run / "request.json").read_text()
    (run / "request.json").write_text(text.replace('"llama-3-8b"', '"llama-2-7b"'))


def changed_trace(run: Path) -> None:
    text = (run / "trace.jsonl").read_text()
    (run / "trace.jsonl").write_text(text.replace('"tune it"', '"tune that"'))


def trials_are_a_folder(run: Path) -> None:
    (run / "trials.jsonl").unlink()
    (run / "trials.jsonl").mkdir()


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (changed_request, "request.json was changed"),
        (changed_trace, "trace.jsonl was changed since it was written: line 1"),
        (trials_are_a_folder, "trials.jsonl cannot be read"),
        (lambda run: (run / "result.json").write_text("[]"), "result.json is damaged"),
    ],
)
def test_a_run_folder_that_was_tampered_with_is_refused(tmp_path, harm, says):
    dying, _ = interrupted_at(4)
    with pytest.raises(Interrupted):
        tune(small_request(budget_calls=6), out=tmp_path / "run", text="tune it", projector=dying)
    harm(tmp_path / "run")
    with pytest.raises(ConfigError) as caught:
        tune(resume=tmp_path / "run")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_damaged_result_is_refused(plain, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(plain[1], run)
    data = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps({**data, "best": "x"}))
    with pytest.raises(ConfigError, match=r"result.json is damaged \(best\)"):
        tune(resume=run)


def test_a_torn_trial_line_is_cut_off(tmp_path):
    dying, _ = interrupted_at(4)
    with pytest.raises(Interrupted):
        tune(small_request(budget_calls=6), out=tmp_path / "run", projector=dying)
    trials = tmp_path / "run" / "trials.jsonl"
    trials.write_bytes(trials.read_bytes() + b'{"key": "torn')
    assert tune(resume=tmp_path / "run").oracle_calls == 6
    assert len([json.loads(line) for line in trials.read_text().splitlines()]) == 6


def test_resuming_a_finished_run_gives_its_result_and_scores_nothing(plain):
    result, out = plain
    never, scored = interrupted_at(1)
    assert tune(resume=out, projector=never) == result
    assert not scored


def test_replay_is_equal_and_names_the_first_difference(plain, tmp_path):
    _, out = plain
    outcome = replay_run(out)
    assert outcome.equal
    assert outcome.first_difference is None
    assert outcome.steps > 30

    from dataclasses import replace

    from shardwise.engine.projection import project

    def other(recipe):
        said = project(recipe)
        return replace(said, tokens_per_s_per_gpu=said.tokens_per_s_per_gpu * 1.01)

    changed = replay_run(out, projector=other)
    assert not changed.equal
    assert "projection" in changed.first_difference


def test_replay_provider_of_a_heuristic_trace_gives_the_same_best(plain, tmp_path):
    result, out = plain
    again = tune(small_request(llm=f"replay:{out / 'trace.jsonl'}"), out=tmp_path / "r")
    assert again.best == result.best


def test_budgets_are_hard(tmp_path):
    for budget in (1, 7):
        living, scored = interrupted_at(10**9)
        result = tune(small_request(budget_calls=budget), out=tmp_path / str(budget), projector=living)
        assert len(scored) == result.oracle_calls <= budget
        assert result.best is not None
        assert "oracle calls" in result.stopped_because
    ticks = iter(range(10**6))
    result = tune(small_request(budget_time_s=5.0), out=tmp_path / "time", clock=lambda: float(next(ticks)))
    assert "time budget" in result.stopped_because


@pytest.mark.parametrize("fixed", [{"tp": 2, "dp_sharding": "zero1"}, {"pp": 2, "recompute": "full"}])
def test_fixed_fields_hold_in_every_recipe_that_is_tried(tmp_path, fixed):
    result = tune(small_request(fixed=fixed, budget_calls=14), out=tmp_path / "run")
    tried = [event for event in read_trace(tmp_path / "run") if event.kind in ("candidate", "projection")]
    assert len(tried) > 8
    for event in tried:
        recipe = load_recipe(event.recipe)
        assert {name: getattr(recipe, name) for name in fixed} == fixed
        assert recipe.precision == "bf16"
    assert result.best is not None


def test_precision_moves_only_when_allowed(tmp_path):
    result = tune(small_request(allow_precision=("fp8",)), out=tmp_path / "run")
    assert result.best["recipe"]["precision"] == "fp8-tensorwise"


def test_an_impossible_request_names_the_rule_and_leaves_no_folder(tmp_path):
    with pytest.raises(ConfigError, match="tp=5"):
        tune(small_request(fixed={"tp": 5}), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_nothing_fits_is_a_result_not_an_error(tmp_path):
    request = TuneRequest.build({"model": "llama-3.1-405b", "cluster": "a100-80gb:1x8", "budget_calls": 8})
    result = tune(request, out=tmp_path / "run")
    assert result.best is None
    assert not result.baseline_fits
    assert result.gain_pct is None
    assert result.stopped_because == "no legal recipe fits in memory"
    assert result.rejected_by_memory > 0


def test_a_used_folder_is_not_written_over(plain, tmp_path):
    _, out = plain
    with pytest.raises(ConfigError, match="holds a run already"):
        tune(small_request(), out=out)
    with pytest.raises(ConfigError, match="no run there"):
        tune(resume=tmp_path / "nowhere")


def test_the_published_reference_is_the_baseline(tmp_path):
    result = tune(TuneRequest.of("tune Mixtral 8x22B on 32 MI355X", budget_calls=4), out=tmp_path / "run")
    recipe = load_recipe(result.baseline["recipe"])
    assert (recipe.tp, recipe.pp, recipe.vpp, recipe.ep, recipe.mbs, recipe.gbs) == (1, 4, 1, 8, 2, 128)
    assert (recipe.seq_len, recipe.precision, recipe.recompute) == (8192, "bf16", "none")
    assert "Primus" in result.baseline_source


def test_checkpoints_stay_small(plain):
    _, out = plain
    assert sum(file.stat().st_size for file in out.glob("checkpoint.sqlite*")) < 2_000_000
