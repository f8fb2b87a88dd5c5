"""``TuneResult``: the answer of a search, as ``tune --json`` prints it and as the run folder keeps it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from shardwise.agent.context import Context
from shardwise.agent.nodes.project import gain_pct
from shardwise.agent.nodes.report import said
from shardwise.agent.state import TuneState
from shardwise.agent.trial import changed
from shardwise.engine.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TuneResult:
    """What was found, against what, at which cost, and why the search ended."""

    run: str
    """The run folder."""
    trace: str
    """The trace file."""
    llm: str
    best: dict[str, Any] | None
    """``{"recipe", "projection"}``; None when no legal recipe fits."""
    baseline: dict[str, Any] | None
    baseline_source: str
    baseline_fits: bool
    gain_pct: float | None
    """Throughput of the best over the baseline's, %."""
    oracle_calls: int
    rejected_by_memory: int
    rejected_illegal: int
    stopped_because: str
    wall_s: float
    """Wall-clock seconds, over all parts of a resumed run."""
    fallback: str | None = None
    """Why the LLM was given up, if it was."""
    effects: list[dict[str, Any]] = field(default_factory=list)
    """Single-axis moves with their effect: ``axis``, ``changes``, ``gain_pct``, ``fits``."""
    choices: dict[str, Any] = field(default_factory=dict)
    """Fields of the best that differ from the baseline."""
    rejections: dict[str, int] = field(default_factory=dict)
    """Rule, or ``memory``, ``duplicate``, ``schema`` -> candidates turned down for it."""
    notes: list[str] = field(default_factory=list)
    """The last lessons."""
    text: str | None = None
    """The user's own words."""

    def as_json(self) -> dict[str, Any]:
        """The contract's fields first, the explanations after them."""
        return {
            "run": self.run,
            "trace": self.trace,
            "llm": self.llm,
            "best": self.best,
            "baseline": self.baseline,
            "gain_pct": self.gain_pct,
            "oracle_calls": self.oracle_calls,
            "rejected_by_memory": self.rejected_by_memory,
            "rejected_illegal": self.rejected_illegal,
            "stopped_because": self.stopped_because,
            "wall_s": self.wall_s,
            "baseline_source": self.baseline_source,
            "baseline_fits": self.baseline_fits,
            "fallback": self.fallback,
            "effects": self.effects,
            "choices": self.choices,
            "rejections": self.rejections,
            "notes": self.notes,
            "text": self.text,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> TuneResult:
        """The inverse of :meth:`as_json`. Raises :class:`ConfigError` for what another version wrote."""
        if not isinstance(data, dict):
            raise ConfigError("result.json is damaged (no mapping); delete it", field="resume")
        names = {one.name for one in fields(cls)}
        if set(data) != names:
            odd = ", ".join(sorted(set(data) ^ names))
            raise ConfigError(f"result.json was written by another version ({odd})", field="resume")
        for name in ("baseline", "best"):
            shown = data[name]
            whole = isinstance(shown, dict) and all(
                isinstance(shown.get(part), dict) for part in ("recipe", "projection")
            )
            if not whole and not (name == "best" and shown is None):
                raise ConfigError(f"result.json is damaged ({name}); delete it", field="resume")
        return cls(**data)


def result_of(ctx: Context, state: TuneState, *, run: str) -> TuneResult:
    """The result of a finished search."""
    best = ctx.incumbent(state)
    baseline = ctx.oracle.get(state["baseline"])
    return TuneResult(
        run=run,
        trace=str(ctx.journal.path),
        llm=ctx.llm_name,
        best=said(ctx, best),
        baseline=said(ctx, baseline),
        baseline_source=ctx.baseline.source,
        baseline_fits=baseline.fits,
        gain_pct=gain_pct(best, baseline, "tokens_per_s_per_gpu") if best else None,
        oracle_calls=len(state["trials"]),
        rejected_by_memory=state["rejected_by_memory"],
        rejected_illegal=state["rejected_illegal"],
        stopped_because=str(state["stop"]),
        wall_s=round(ctx.budget.elapsed_s(), 3),
        fallback=state.get("fallback"),
        effects=_effects(ctx, state),
        choices=changed(baseline.fields, best.fields) if best else {},
        rejections=_rejections(ctx),
        notes=list(state["notes"]),
        text=ctx.text,
    )


def _effects(ctx: Context, state: TuneState) -> list[dict[str, Any]]:
    """Single-axis moves of the plan, read from the trace, with their effect against where they started."""
    start = ctx.space.anchor if ctx.space.anchor is not None else ctx.baseline.fields
    told = {
        event.key: event
        for event in ctx.journal.told()
        if event.kind == "candidate" and event.origin == "planner"
    }
    trials = {trial.key: trial for trial in ctx.trials(state)}
    origin = next((trial for trial in trials.values() if trial.fields == start), None)
    return [
        {
            "axis": event.rationale.removeprefix("sweep of ").split(":")[0],
            "changes": dict(event.changes),
            "gain_pct": gain_pct(trials[key], origin, ctx.request.objective),
            "fits": trials[key].fits,
        }
        for key, event in told.items()
        if key in trials
    ]


def _rejections(ctx: Context) -> dict[str, int]:
    counts: dict[str, int] = {}
    for event in ctx.journal.told():
        if event.kind == "rejection":
            name = event.rule or event.by
            counts[name] = counts.get(name, 0) + 1
    return dict(sorted(counts.items()))
