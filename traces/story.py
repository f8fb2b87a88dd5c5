"""A trace told in plain lines: what was asked, planned, proposed, turned down and found, round by round."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shardwise.engine.units import GIB
from shardwise.traces.canonical import canonical
from shardwise.traces.events import (
    BudgetEvent,
    CandidateEvent,
    ErrorEvent,
    Event,
    FallbackEvent,
    LlmResponseEvent,
    NoteEvent,
    PlanEvent,
    ProjectionEvent,
    PromptEvent,
    ReflectionEvent,
    RejectionEvent,
    RequestEvent,
    ResultEvent,
    ToolCallEvent,
    ToolResultEvent,
)

MAX_TEXT = 300
"""Longest piece of somebody's text (a reply, a rationale) that is told, characters."""

SCORE = "tokens_per_s_per_gpu"
"""The figure by which "best so far" is told."""


@dataclass(slots=True)
class _Teller:
    """Lines so far and what must be remembered to tell the next one."""

    lines: list[str] = field(default_factory=list)
    round: int | None = None
    best: float | None = None

    def say(self, text: str, indent: int = 0) -> None:
        self.lines.append("  " * indent + text)

    def enter(self, number: int) -> None:
        """Head a new round when its first event comes."""
        if number != self.round:
            self.round = number
            self.say("")
            self.say(f"Round {number}")


def story(events: Iterable[Event]) -> list[str]:
    """The run as lines of plain text (no markup), in order; indented below each round's heading."""
    teller = _Teller()
    for event in events:
        _TELL[event.kind](teller, event)
    return teller.lines


def changes_in_words(changes: Mapping[str, Any]) -> str:
    """``{"tp": 1, "mbs": 2}`` as ``tp=1 mbs=2``; ``unchanged`` when there are none."""
    return " ".join(f"{name}={_value(value)}" for name, value in changes.items()) or "unchanged"


def figures_in_words(figures: Mapping[str, Any]) -> str:
    """Key figures of a projection in one line: throughput, step time, MFU, memory, verdict; then the rest."""
    rest = dict(figures)
    told: list[str] = []
    shapes: tuple[tuple[str, Callable[[float], str]], ...] = (
        (SCORE, lambda x: f"{x:,.0f} tokens/s/GPU"),
        ("tflops_per_gpu", lambda x: f"{x:,.0f} TFLOP/s/GPU"),
        ("step_time_s", lambda x: f"{x:.3f} s/step"),
        ("mfu", lambda x: f"MFU {100 * x:.1f}%"),
        ("peak_bytes", lambda x: f"{x / GIB:.1f} GiB"),
        ("peak_mem_gib", lambda x: f"{x:.1f} GiB"),
    )
    for name, shape in shapes:
        value = rest.pop(name, None)
        if isinstance(value, (int, float)):
            told.append(shape(value))
    verdict = rest.pop("verdict", None)
    told += [str(verdict)] if verdict else []
    told += [f"{name} {_value(value)}" for name, value in rest.items() if _is_plain(value)]
    return ", ".join(told) or "no figures"


def _request(teller: _Teller, event: RequestEvent) -> None:
    teller.say(f"Asked: {event.text or canonical(event.request)}")
    teller.say(f"Proposals by: {event.llm}")
    if event.versions:
        teller.say(
            "Versions: " + ", ".join(f"{name} {version}" for name, version in sorted(event.versions.items()))
        )


def _plan(teller: _Teller, event: PlanEvent) -> None:
    teller.say("")
    teller.say("Plan" + (f": {_short(event.text)}" if event.text else ""))
    if event.baseline:
        teller.say(f"baseline: {_recipe(event.baseline)}", 1)
    for candidate in event.candidates:
        teller.say(f"try {changes_in_words(candidate)}", 1)


def _prompt(teller: _Teller, event: PromptEvent) -> None:
    tools = ", ".join(str(_at(tool, "function", "name") or tool.get("name")) for tool in event.tools)
    teller.say(
        f"LLM asked (prompt {event.number}, {_count(len(event.messages), 'message')}"
        + (f", tools: {tools}" if tools else "")
        + (", answer schema" if event.answer_schema else "")
        + ")",
        1,
    )


def _llm_response(teller: _Teller, event: LlmResponseEvent) -> None:
    total = (event.usage or {}).get("total_tokens")
    tail = f" [{total} tokens]" if total else ""
    content = event.message.get("content")
    calls = event.message.get("tool_calls")
    names = (
        [str(call.get("name")) for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    )
    said = [_short(str(content))] if content else []
    said += [f"calls {', '.join(names)}"] if names else []
    teller.say(f"LLM answered{tail}: {'; '.join(said) or 'nothing'}", 1)


def _tool_call(teller: _Teller, event: ToolCallEvent) -> None:
    teller.say(f"tool {event.name}({_short(changes_in_words(event.args)) if event.args else ''})", 2)


def _tool_result(teller: _Teller, event: ToolResultEvent) -> None:
    text = event.content if isinstance(event.content, str) else canonical(event.content)
    teller.say(f"{'->' if event.ok else 'failed:'} {_short(text)}", 3)


def _candidate(teller: _Teller, event: CandidateEvent) -> None:
    teller.enter(event.round)
    expects = "" if event.expected_gain_pct is None else f" (expects {event.expected_gain_pct:+.1f}%)"
    why = f": {_short(event.rationale)}" if event.rationale else ""
    origin = f"{event.origin} proposes " if event.origin else "proposed "
    teller.say(f"{origin}{changes_in_words(event.changes)}{expects}{why}", 1)


def _rejection(teller: _Teller, event: RejectionEvent) -> None:
    teller.enter(event.round)
    rule = f" ({event.rule})" if event.rule else ""
    changes = f"{changes_in_words(event.changes)} " if event.changes else ""
    teller.say(f"{changes}rejected by {event.by}{rule}: {_short(event.message)}", 2)


def _projection(teller: _Teller, event: ProjectionEvent) -> None:
    teller.enter(event.round)
    score = event.figures.get(SCORE)
    mark = ""
    fits = event.figures.get("verdict") in (None, "fits", "tight")
    if isinstance(score, (int, float)) and fits and (teller.best is None or score > teller.best):
        gain = "" if teller.best is None else f", {100 * (score / teller.best - 1):+.1f}%"
        teller.best = float(score)
        mark = f"  <- best so far{gain}"
    known = " (known already)" if event.cached else ""
    teller.say(f"{event.key[:8]}: {figures_in_words(event.figures)}{known}{mark}", 2)


def _reflection(teller: _Teller, event: ReflectionEvent) -> None:
    teller.enter(event.round)
    teller.say(f"learned: {_short(event.text)}", 1)
    if event.best:
        teller.say(f"best so far: {figures_in_words(event.best)}", 1)


def _note(teller: _Teller, event: NoteEvent) -> None:
    teller.say(f"note{f' ({event.topic})' if event.topic else ''}: {_short(event.text)}", 1)


def _fallback(teller: _Teller, event: FallbackEvent) -> None:
    teller.say(f"{event.provider} failed: {_short(event.reason)}; going on with {event.to}", 1)


def _budget(teller: _Teller, event: BudgetEvent) -> None:
    used = ", ".join(
        f"{name} {_value(value)}"
        + (f" of {_value(event.limits[name])}" if event.limits.get(name) is not None else "")
        for name, value in event.used.items()
    )
    teller.say(f"budget: {used}" + (f"; {event.exhausted} is used up" if event.exhausted else ""), 1)


def _error(teller: _Teller, event: ErrorEvent) -> None:
    teller.say(f"error{f' ({event.where})' if event.where else ''}: {_short(event.message)}", 1)


def _result(teller: _Teller, event: ResultEvent) -> None:
    teller.say("")
    teller.say("Result" + ("" if event.best else ": none"))
    if event.best:
        recipe = _at(event.best, "recipe")
        teller.say(f"best: {_recipe(recipe) if isinstance(recipe, dict) else '?'}", 1)
        teller.say(_projected(_at(event.best, "projection")), 1)
    if event.gain_pct is not None:
        teller.say(f"{event.gain_pct:+.1f}% over the baseline", 1)
    spent = _count(event.oracle_calls, "oracle call")
    teller.say(
        f"{spent}; rejected: {event.rejected_by_memory} by memory, {event.rejected_illegal} illegal", 1
    )
    if event.stopped_because:
        teller.say(f"stopped because {event.stopped_because}", 1)


_TELL: dict[str, Callable[[_Teller, Any], None]] = {
    "request": _request,
    "plan": _plan,
    "prompt": _prompt,
    "llm_response": _llm_response,
    "tool_call": _tool_call,
    "tool_result": _tool_result,
    "candidate": _candidate,
    "rejection": _rejection,
    "projection": _projection,
    "reflection": _reflection,
    "note": _note,
    "fallback": _fallback,
    "budget": _budget,
    "error": _error,
    "result": _result,
}


def _recipe(recipe: Mapping[str, Any]) -> str:
    """A recipe's knobs, without the model's and the cluster's own figures."""
    names = [str(_at(recipe, part, "name") or recipe[part]) for part in ("model",) if part in recipe]
    cluster = recipe.get("cluster")
    names += [cluster] if isinstance(cluster, str) else []
    knobs = {name: value for name, value in recipe.items() if name not in ("model", "cluster")}
    return " ".join([*names, changes_in_words(knobs)])


def _projected(projection: Any) -> str:
    if not isinstance(projection, dict):
        return "not projected"
    names = (SCORE, "tflops_per_gpu", "step_time_s", "mfu")
    figures = {name: projection[name] for name in names if projection.get(name) is not None}
    figures |= {name: _at(projection, "memory", name) for name in ("peak_bytes", "verdict")}
    return figures_in_words(figures)


def _at(value: Any, *path: str) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _is_plain(value: Any) -> bool:
    return isinstance(value, (str, int, float)) and not isinstance(value, bool)


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else canonical(value)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_TEXT else line[: MAX_TEXT - 3] + "..."
