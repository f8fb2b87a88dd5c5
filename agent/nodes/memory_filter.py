"""Memory filter: turns down what is illegal, already tried, or does not fit, before any oracle call."""

from __future__ import annotations

from langgraph.runtime import Runtime

from shardwise.agent.context import Context, enter
from shardwise.agent.state import Candidate, TuneState
from shardwise.agent.trial import recipe_of, words
from shardwise.engine import legality
from shardwise.engine.recipe_io import dump_recipe, recipe_key
from shardwise.memory_filter import filter_recipe

KEPT_REJECTIONS = 8
"""Rejections kept in the state for the LLM to read."""
_MAX_TEXT = 240


def memory_filter(state: TuneState, runtime: Runtime[Context]) -> TuneState:
    """Move what may be scored from the queue to the batch; tell every candidate and every rejection."""
    ctx = enter(state, runtime.context)
    tried = set(state["trials"])
    batch: list[Candidate] = []
    counts = {"legality": 0, "memory": 0, "duplicate": 0}
    told = list(state["rejected"])
    for candidate in state["queue"]:
        recipe = recipe_of(ctx.request, candidate["fields"])
        key = recipe_key(recipe)
        ctx.journal.append(
            "candidate",
            changes=candidate["changes"],
            round=state["round"],
            origin=candidate["origin"],
            rationale=candidate["rationale"],
            expected_gain_pct=candidate["expected_gain_pct"],
            key=key,
            recipe=dump_recipe(recipe),
        )
        by, rule, message = "", "", ""
        broken = legality.check(recipe)
        if broken:
            by, rule, message = "legality", broken[0].rule, broken[0].message
        elif key in tried:
            by, message = "duplicate", "was tried already"
        elif not candidate["reference"] and (reason := filter_recipe(recipe, ctx.request.margin).reason(0)):
            by, message = "memory", reason
        if not by:
            tried.add(key)
            batch.append(candidate)
            continue
        counts[by] += 1
        ctx.journal.append(
            "rejection",
            by=by,
            rule=rule,
            message=message,
            round=state["round"],
            changes=candidate["changes"],
            key=key,
        )
        if by != "duplicate" or candidate["origin"] == "llm":
            told.append(f"{words(candidate['changes'])}: {message}"[:_MAX_TEXT])
    return ctx.leave(
        TuneState(
            queue=[],
            batch=batch,
            rejected_by_memory=state["rejected_by_memory"] + counts["memory"],
            rejected_illegal=state["rejected_illegal"] + counts["legality"],
            rejected=told[-KEPT_REJECTIONS:],
        )
    )
