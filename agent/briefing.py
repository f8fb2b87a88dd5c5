"""What the LLM is told of the search: the bench for its tools, and the words that fill the prompts.

Everything here is a function of the state and the trials, without clock times, paths or ids, so that a
replayed run asks word for word the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from shardwise.agent.context import Context
from shardwise.agent.features import axis_columns
from shardwise.agent.proposals import apply_changes
from shardwise.agent.state import TuneState
from shardwise.agent.trial import Trial, changed, default_of, recipe_of, value_of, word, words
from shardwise.engine.errors import ConfigError
from shardwise.engine.recipe import Recipe
from shardwise.engine.table import decode
from shardwise.engine.units import GIB
from shardwise.prompts import load
from shardwise.tools.bench import Bench, TrialView

MAX_RESULTS = 12
MAX_COMPACT_RESULTS = 4
MAX_COMPACT_VALUES = 6
_COMPACT = (
    "recompute",
    "tp",
    "pp",
    "vpp",
    "cp",
    "ep",
    "mbs",
    "dp_sharding",
    "moe_token_dispatcher",
    "precision",
)
"""What a small model may change; the rest is left to the heuristic proposer."""


def bench_of(ctx: Context, state: TuneState) -> Bench:
    """The tools' view of the search."""
    views = [_view(i, trial) for i, trial in enumerate(ctx.trials(state))]
    start = start_of(ctx, state)

    def apply(changes: Mapping[str, Any]) -> Recipe:
        for name, value in ctx.request.fixed.items():
            if name in changes and changes[name] != value:
                raise ConfigError(f"{name} is fixed to {value!r} by the request", field=name)
        unknown = [
            name for name in changes if name not in Recipe.model_fields or name in ("model", "cluster")
        ]
        if unknown:
            raise ConfigError(f"{unknown[0]!r} is no field that can change", field=unknown[0])
        return recipe_of(ctx.request, apply_changes(start.fields, changes, ctx.request))

    index = state["trials"].index(start.key)
    return Bench(
        trials=views,
        incumbent=views[index],
        apply=apply,
        margin=ctx.request.margin,
        choices=choices_of(ctx),
        notes=state["notes"],
    )


def start_of(ctx: Context, state: TuneState) -> Trial:
    """What proposals are changes of: the incumbent, or the baseline while nothing fits."""
    return ctx.incumbent(state) or ctx.oracle.get(state["baseline"])


def choices_of(ctx: Context) -> dict[str, list[Any]]:
    """Recipe field -> the values that occur among the legal recipes that fit, for every field that varies."""
    table = ctx.space.fitting
    out: dict[str, list[Any]] = {}
    for axis in ctx.space.coding.axes:
        for name in axis_columns(axis):
            column = getattr(table, name)
            codes = np.unique(column).tolist()
            if len(codes) > 1:
                out[name] = [_decoded(name, code) for code in codes]
    return out


def full_prompt(ctx: Context, state: TuneState) -> tuple[str, str]:
    """System and user message of a round with tools."""
    start = start_of(ctx, state)
    baseline = ctx.oracle.get(state["baseline"])
    order = state["trials"]
    user = load("round").fill(
        round=str(state["round"]),
        calls_left=str(ctx.budget.calls_left(len(order))),
        workload=workload(ctx),
        fixed=_or_none(words(ctx.request.fixed) if ctx.request.fixed else ""),
        incumbent_id=f"T{order.index(start.key)}",
        incumbent=words(_explicit(start.fields)),
        incumbent_figures=_figures(start),
        baseline_id=f"T{order.index(baseline.key)}",
        baseline_figures=_figures(baseline),
        axes=_bullets(
            f"{name}: {', '.join(word(v) for v in values)}" for name, values in choices_of(ctx).items()
        ),
        effects=_bullets(note for note in state["notes"] if _is_effect(note)),
        results=_bullets(_result_lines(ctx, state, MAX_RESULTS)),
        rejected=_bullets(state["rejected"]),
        notes=_bullets(note for note in state["notes"] if not _is_effect(note)),
    )
    return load("system").text, user


def compact_prompt(ctx: Context, state: TuneState) -> tuple[str, dict[str, list[Any]]]:
    """One short message, and the choices that its answer may use."""
    start = start_of(ctx, state)
    found = choices_of(ctx)
    choices = {
        name: _thinned(found[name], value_of(start.fields, name)) for name in _COMPACT if name in found
    }
    breakdown = start.projection.get("time_breakdown_s") or {}
    slowest = sorted(breakdown.items(), key=lambda item: (-item[1], item[0]))[:3]
    total = start.projection.get("step_time_s") or 1.0
    capacity = ctx.request.cluster.gpu.memory_bytes
    text = load("compact").fill(
        workload=workload(ctx),
        incumbent=words({name: value_of(start.fields, name) for name in choices}),
        speed=f"{start.tokens_per_s_per_gpu:.0f} tokens/s/GPU",
        slowest=", ".join(f"{name} {100 * value / total:.0f}%" for name, value in slowest),
        memory=f"{start.peak_bytes / GIB:.0f} of {capacity / GIB:.0f} GiB",
        fixed=_or_none(words(ctx.request.fixed) if ctx.request.fixed else ""),
        axes="; ".join(f"{name} {'|'.join(word(v) for v in values)}" for name, values in choices.items()),
        results=_or_none("; ".join(_result_lines(ctx, state, MAX_COMPACT_RESULTS))),
    )
    return text, choices


def workload(ctx: Context) -> str:
    """Model, cluster and batch in one line."""
    model, cluster = ctx.request.model, ctx.request.cluster
    fields = ctx.baseline.fields
    experts = f", {model.num_experts} experts top-{model.moe_router_topk}" if model.num_experts else ""
    return (
        f"{model.name} ({model.num_layers} layers, hidden {model.hidden_size}, "
        f"{model.num_attention_heads} heads{experts}) on {cluster.world_size} {cluster.gpu.name} "
        f"({cluster.num_nodes} nodes of {cluster.gpus_per_node}), gbs {fields['gbs']}, "
        f"seq_len {fields['seq_len']}"
    )


def _view(number: int, trial: Trial) -> TrialView:
    return TrialView(f"T{number}", trial.fields, trial.projection, trial.fits)


def _figures(trial: Trial) -> str:
    said = trial.projection
    total = said.get("step_time_s") or 1.0
    parts = sorted((said.get("time_breakdown_s") or {}).items(), key=lambda item: (-item[1], item[0]))
    shares = ", ".join(
        f"{name} {100 * value / total:.1f}%" for name, value in parts if value / total >= 0.005
    )
    fits = "fits" if trial.fits else "does not fit"
    return (
        f"{trial.tokens_per_s_per_gpu:.1f} tokens/s/GPU, peak {trial.peak_bytes / GIB:.1f} GiB ({fits}); "
        f"step: {shares}"
    )


def _result_lines(ctx: Context, state: TuneState, most: int) -> list[str]:
    """The last scored recipes as changes to the incumbent, newest last."""
    start = start_of(ctx, state)
    lines: list[str] = []
    first = max(0, len(state["trials"]) - most)
    for number, trial in list(enumerate(ctx.trials(state)))[first:]:
        if trial.key == start.key:
            continue
        gain = 100.0 * (trial.tokens_per_s_per_gpu / start.tokens_per_s_per_gpu - 1.0)
        lines.append(f"T{number} {words(changed(start.fields, trial.fields))}: {gain:+.1f}%")
    return lines


def _explicit(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in ("gbs", "seq_len")}


def _thinned(values: list[Any], own: Any) -> list[Any]:
    """At most :data:`MAX_COMPACT_VALUES` of ``values``, spread evenly, its own among them."""
    if len(values) <= MAX_COMPACT_VALUES:
        return values
    step = (len(values) - 1) / (MAX_COMPACT_VALUES - 1)
    kept = {round(i * step) for i in range(MAX_COMPACT_VALUES)}
    return [value for i, value in enumerate(values) if i in kept or value == own]


def _is_effect(note: str) -> bool:
    """Sweep lessons start with an axis name and a colon; later lessons with ``field=value``."""
    return "=" not in note.split(":", 1)[0]


def _bullets(lines: Any) -> str:
    listed = [f"- {line}" for line in lines]
    return "\n".join(listed) if listed else "- none"


def _or_none(text: str) -> str:
    return text or "none"


def _decoded(name: str, code: Any) -> Any:
    value = decode(name, code)
    if value == 0 and value is not False and default_of(name) is None:
        return None  # in a table an unset count is 0
    return list(value) if isinstance(value, tuple) else value
