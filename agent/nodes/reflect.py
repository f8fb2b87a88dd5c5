"""Reflection: holds what was promised against what came, writes the lesson, decides whether to go on."""

from __future__ import annotations

from typing import Any

from langgraph.runtime import Runtime

from shardwise.agent.context import Context, enter
from shardwise.agent.nodes.project import figures
from shardwise.agent.state import MAX_NOTES, TuneState

WORTH_PCT = 0.1
"""Gains below this, in percent, do not count as progress."""
PATIENCE = 5
"""Rounds in a row without progress after which the search stops."""
LLM_PATIENCE = 2
"""Rounds in a row without progress after which the heuristic proposer takes over from an LLM."""
POLISH_SHARE = 0.2
"""Share of the oracle calls kept for the heuristic proposer after an LLM, so that the answer is never worse
than what it would have found next to the LLM's best."""


def reflection(state: TuneState, runtime: Runtime[Context]) -> TuneState:
    """Lessons of the round to notes and trace; ``stop`` is set when the search is over."""
    ctx = enter(state, runtime.context)
    results = state["results"]
    best = ctx.incumbent(state)
    planned = state["round"] == 0
    lessons = _sweep_lessons(results) if planned else [_lesson(result) for result in results]
    gains = [r["gain"] for r in results if r["gain"] is not None and r["fits"]]
    progress = max(gains, default=0.0)
    stagnant = 0 if planned or progress > WORTH_PCT else state["stagnant"] + 1
    text = "; ".join(lessons) if lessons else "nothing was scored: every candidate was turned down"
    ctx.journal.append(
        "reflection",
        text=text,
        round=state["round"],
        best_key=best.key if best else None,
        best=figures(best) if best else {},
        data={"stagnant_rounds": stagnant, "gain_pct": progress},
    )
    proposer, stagnant = _proposer(ctx, state, stagnant)
    stop = ctx.budget.exhausted(len(state["trials"]))
    if stop is None and stagnant >= PATIENCE:
        stop = f"no gain above {WORTH_PCT:g}% in {PATIENCE} rounds"
    return ctx.leave(
        TuneState(
            notes=[*state["notes"], *lessons][-MAX_NOTES:],
            stagnant=stagnant,
            proposer=proposer,
            round=state["round"] + 1,
            stop=stop,
        )
    )


def _proposer(ctx: Context, state: TuneState, stagnant: int) -> tuple[str, int]:
    """Who proposes next. An LLM that no longer helps, or has used its share, hands over for good."""
    now = state["proposer"]
    if now != "llm":
        return now, stagnant
    left = ctx.budget.calls_left(len(state["trials"]))
    reason = ""
    if stagnant >= LLM_PATIENCE:
        reason = f"the LLM brought no gain in {LLM_PATIENCE} rounds"
    elif state["round"] > 0 and left <= POLISH_SHARE * ctx.request.budget_calls:
        reason = f"{left} oracle calls are left"
    if not reason:
        return now, stagnant
    ctx.journal.append(
        "note", topic="proposer", text=f"{reason}: the heuristic proposer refines the best so far"
    )
    return "heuristic", 0


def _sweep_lessons(results: list[dict[str, Any]]) -> list[str]:
    """For each swept axis its best and worst move."""
    by_axis: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        if result["axis"] and result["gain"] is not None:
            by_axis.setdefault(result["axis"], []).append(result)
    lessons: list[str] = []
    for axis, moves in by_axis.items():
        ranked = sorted(moves, key=lambda move: (-move["gain"], move["label"]))
        shown = ranked if len(ranked) <= 3 else [ranked[0], ranked[1], ranked[-1]]
        lessons.append(f"{axis}: " + ", ".join(f"{move['label']} {move['gain']:+.1f}%" for move in shown))
    return lessons


def _lesson(result: dict[str, Any]) -> str:
    gain = result["gain"]
    came = "no comparison" if gain is None else f"got {gain:+.1f}%"
    if result["expected"] is None or gain is None:
        return f"{result['label']}: {came}"
    miss = gain - result["expected"]
    verdict = (
        "as expected" if abs(miss) <= 1.0 else "better than expected" if miss > 0 else "worse than expected"
    )
    return f"{result['label']}: expected {result['expected']:+.1f}%, {came} ({verdict})"
