"""Projection: asks the oracle for the batch, within the budgets, and keeps the best."""

from __future__ import annotations

from typing import Any

from langgraph.runtime import Runtime

from shardwise.agent.context import Context, enter
from shardwise.agent.planner import seed_budget
from shardwise.agent.state import TuneState
from shardwise.agent.trial import Trial, recipe_of, words
from shardwise.engine.recipe_io import dump_recipe


def projection(state: TuneState, runtime: Runtime[Context]) -> TuneState:
    """Score the batch in order; stop at a budget. The planner's round may use only its share of the calls."""
    ctx = enter(state, runtime.context)
    objective = ctx.request.objective
    trials = list(state["trials"])
    best = ctx.incumbent(state)
    before = best
    baseline = state.get("baseline")
    results: list[dict[str, Any]] = []
    limit = seed_budget(ctx.request.budget_calls) if state["round"] == 0 else ctx.request.budget_calls
    for candidate in state["batch"]:
        # The baseline is scored whatever the clock says: without it there is nothing to answer.
        if len(trials) >= limit or (trials and ctx.budget.exhausted(len(trials))):
            break
        recipe = recipe_of(ctx.request, candidate["fields"])
        trial = ctx.oracle.score(recipe)
        trials.append(trial.key)
        ctx.journal.append(
            "projection",
            key=trial.key,
            recipe=dump_recipe(recipe),
            figures=figures(trial),
            provenance=trial.projection.get("provenance") or {},
            round=state["round"],
            origin=candidate["origin"],
        )
        if baseline is None and candidate["reference"]:
            baseline = trial.key
        # In the planner's round moves are held against where they start from, later against the incumbent.
        start = before if before is not None else (best or (ctx.oracle.get(baseline) if baseline else None))
        results.append(
            {
                "key": trial.key,
                "axis": candidate["axis"],
                "label": words(candidate["changes"]),
                "origin": candidate["origin"],
                "expected": candidate["expected_gain_pct"],
                "gain": gain_pct(trial, start, objective),
                "fits": trial.fits,
            }
        )
        if trial.fits and (best is None or trial.score(objective) > best.score(objective)):
            best = trial
        if state["round"] == 0 and before is None and trial.fits:
            before = trial
    update = TuneState(batch=[], results=results, trials=trials, incumbent=best.key if best else None)
    if baseline is not None:
        update["baseline"] = baseline
    return ctx.leave(update)


def gain_pct(trial: Trial, against: Trial | None, objective: str) -> float | None:
    """How much better ``trial`` scores, %; None when there is nothing to hold it against."""
    if against is None or against.score(objective) <= 0:
        return None
    return round(100.0 * (trial.score(objective) / against.score(objective) - 1.0), 4)


def figures(trial: Trial) -> dict[str, Any]:
    """The key figures of a trial for the trace."""
    said = trial.projection
    memory = said.get("memory") or {}
    return {
        "tokens_per_s_per_gpu": said.get("tokens_per_s_per_gpu"),
        "tflops_per_gpu": said.get("tflops_per_gpu"),
        "mfu": said.get("mfu"),
        "step_time_s": said.get("step_time_s"),
        "interval80": said.get("interval80"),
        "bubble_fraction": said.get("bubble_fraction"),
        "time_breakdown_s": said.get("time_breakdown_s"),
        "verdict": memory.get("verdict"),
        "peak_bytes": memory.get("peak_bytes"),
        "capacity_bytes": memory.get("capacity_bytes"),
        "peak_stage": memory.get("peak_stage"),
        "fits": trial.fits,
    }
