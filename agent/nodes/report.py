"""Report: closes the trace with the answer."""

from __future__ import annotations

from typing import Any

from langgraph.runtime import Runtime

from shardwise.agent.context import Context, enter
from shardwise.agent.nodes.project import gain_pct
from shardwise.agent.state import TuneState
from shardwise.agent.trial import Trial, recipe_of
from shardwise.engine.recipe_io import dump_recipe


def report(state: TuneState, runtime: Runtime[Context]) -> TuneState:
    """Budget and result go to the trace; the answer, without full projections, into the state."""
    ctx = enter(state, runtime.context)
    used = len(state["trials"])
    best = ctx.incumbent(state)
    key = state.get("baseline")
    baseline = ctx.oracle.get(key) if key is not None else None
    gain = gain_pct(best, baseline, "tokens_per_s_per_gpu") if best is not None else None
    stopped = state["stop"] or "the plan is done"
    ctx.journal.append(
        "budget",
        used={"oracle_calls": used},
        limits={"oracle_calls": ctx.request.budget_calls, "time_s": ctx.request.budget_time_s},
        exhausted=ctx.budget.exhausted(used),
    )
    ctx.journal.append(
        "result",
        best=said(ctx, best),
        baseline=said(ctx, baseline),
        gain_pct=gain,
        stopped_because=stopped,
        oracle_calls=used,
        rejected_by_memory=state["rejected_by_memory"],
        rejected_illegal=state["rejected_illegal"],
    )
    return ctx.leave(
        TuneState(
            stop=stopped,
            result={
                "best": best.key if best else None,
                "baseline": key,
                "gain_pct": gain,
                "oracle_calls": used,
                "stopped_because": stopped,
            },
        )
    )


def said(ctx: Context, trial: Trial | None) -> dict[str, Any] | None:
    """``{"recipe", "projection"}`` as in ``tune --json``; None for None."""
    if trial is None:
        return None
    return {"recipe": dump_recipe(recipe_of(ctx.request, trial.fields)), "projection": trial.projection}
