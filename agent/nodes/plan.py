"""Planner: tells the request, then queues the deterministic seed plan."""

from __future__ import annotations

from langgraph.runtime import Runtime

from shardwise.agent.context import Context, enter
from shardwise.agent.planner import plan, seed_budget
from shardwise.agent.state import TuneState, started
from shardwise.agent.trial import recipe_of
from shardwise.engine.recipe_io import dump_recipe


def planner(state: TuneState, runtime: Runtime[Context]) -> TuneState:
    """Start the search: request and plan go to the trace, the plan's candidates into the queue."""
    ctx = enter(state, runtime.context)
    request = ctx.request
    ctx.journal.append(
        "request",
        request=request.as_json(),
        text=ctx.text,
        llm=ctx.llm_name,
        run_id=ctx.run_id,
        versions=ctx.versions,
    )
    queue = plan(ctx.baseline, ctx.space)
    calls = seed_budget(request.budget_calls)
    ctx.journal.append(
        "plan",
        baseline=dump_recipe(recipe_of(request, ctx.baseline.fields)),
        candidates=[candidate["changes"] for candidate in queue],
        text=(
            f"baseline: {ctx.baseline.source}; {len(queue) - 1} single moves planned, at most {calls} of "
            f"{request.budget_calls} oracle calls for them; {len(ctx.space.legal)} legal recipes in "
            f"the space, {int(ctx.space.keep.sum())} fit"
        ),
    )
    begun = started()
    begun["proposer"] = "llm" if ctx.llm is not None else "heuristic"
    begun["queue"] = queue
    return ctx.leave(begun)
