"""What ``import shardwise`` offers: the commands as functions, over typed values.

Everything that takes a recipe takes it in any spelling: a :class:`Recipe`, a mapping as in a recipe
file (``{"model": "llama-3-8b", "cluster": "h100:1x8", "tp": 2}``), or the path of such a file; keyword
arguments set or override single fields. Bad input raises :class:`ConfigError` with one clear line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwise.engine.errors import ConfigError
from shardwise.engine.recipe import Recipe
from shardwise.engine.results import DEFAULT_MARGIN, MemoryReport, Projection, Violation

if TYPE_CHECKING:
    from shardwise.agent.request import TuneRequest
    from shardwise.agent.result import TuneResult
    from shardwise.engine.frameworks import Exported
    from shardwise.engine.sweep import SweepResult

RecipeLike = Recipe | Mapping[str, Any] | str | Path


@dataclass(frozen=True, slots=True)
class Legality:
    """Whether a recipe is legal, and the rules that it breaks. True when legal."""

    violations: tuple[Violation, ...]

    @property
    def legal(self) -> bool:
        return not self.violations

    def __bool__(self) -> bool:
        return self.legal

    def as_json(self) -> dict[str, Any]:
        return {"legal": self.legal, "violations": [v.as_json() for v in self.violations]}


def recipe_of(recipe: RecipeLike, fields: Mapping[str, Any] | None = None) -> Recipe:
    """``recipe`` in any spelling as a validated :class:`Recipe`, with ``fields`` set on top.

    Raises:
        ConfigError: unreadable file, unknown name, unknown field, value without meaning.
    """
    from shardwise.engine.recipe_io import apply_overrides, dump_recipe, load_recipe, read_recipe_file

    if isinstance(recipe, Recipe):
        if not fields:
            return recipe
        data: Mapping[str, Any] = dump_recipe(recipe)
    elif isinstance(recipe, Mapping):
        data = recipe
    else:
        data = read_recipe_file(recipe)
    return load_recipe(apply_overrides(data, fields or {}))


def project(recipe: RecipeLike, **fields: Any) -> Projection:
    """One projection: step time, throughput with its interval, memory, and where the time goes.

    An illegal recipe is a result, not an error: ``violations`` are listed and the figures are None.
    """
    from shardwise.engine import projection

    return projection.project(recipe_of(recipe, fields))


def memory(recipe: RecipeLike, **fields: Any) -> MemoryReport:
    """The memory verdict, in bytes per pipeline stage and item.

    Raises:
        ConfigError: the recipe is illegal, so there is no run whose memory could be told.
    """
    from shardwise.engine import memory as engine_memory

    checked = recipe_of(recipe, fields)
    broken = legal(checked).violations
    if broken:
        raise ConfigError(f"illegal recipe: {broken[0].rule}: {broken[0].message}", field=broken[0].fields[0])
    return engine_memory.report(checked)


def legal(recipe: RecipeLike, **fields: Any) -> Legality:
    """The rules that the recipe breaks, if any."""
    from shardwise.engine import legality

    return Legality(legality.check(recipe_of(recipe, fields)))


def sweep(
    base: RecipeLike,
    *,
    axes: Sequence[str] | None = None,
    fixed: Sequence[str] | None = None,
    margin: float = DEFAULT_MARGIN,
    top: int = 10,
    **fields: Any,
) -> SweepResult:
    """Score the whole legal space around ``base``, best first.

    Args:
        base: model, cluster, batch and sequence, and the value of each field that is not swept.
        axes: names of the axes to sweep; None = all that make sense for the model and cluster.
        fixed: fields that keep the base's value; None = the fields given as keyword arguments.
        margin: share of the device's memory that must stay free.
        top: how many of the best to return.
    """
    from shardwise.engine import sweep as engine_sweep

    held = tuple(fields) if fixed is None else tuple(fixed)
    return engine_sweep.sweep(recipe_of(base, fields), axes, fixed=held, margin=margin, top=top)


def tune(
    request: str | TuneRequest = "",
    *,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    **fields: Any,
) -> TuneResult:
    """Search for the fastest recipe; the result, the run folder and the trace are on disk when this returns.

    Args:
        request: plain words (``"tune Mixtral 8x22B on 32 MI355X"``) or a validated request.
        out: the run folder; None = a new one below ``runs``.
        resume: the folder of an interrupted run to go on with; then no request is needed.
        fields: fields of the request, winning over the words: ``model``, ``cluster``, ``gbs``, ``seq_len``,
            ``fixed={"tp": 1}``, ``recipe={...}`` to start from, ``budget_calls``, ``llm`` and so on.

    Raises:
        ConfigError: the request cannot be understood, or the run folder cannot be used.
    """
    from shardwise.agent import session
    from shardwise.agent.request import TuneRequest

    if isinstance(request, TuneRequest):
        asked: TuneRequest | None = request.with_(**fields) if fields else request
    else:
        asked = None if resume is not None else TuneRequest.of(request, **fields)
    folder = None if out is None else Path(out)
    return session.tune(asked, out=folder, resume=None if resume is None else Path(resume))


def export(recipe: RecipeLike, to: str, **fields: Any) -> Exported:
    """The recipe as the configuration of a training framework (``megatron-lm``, ``primus``)."""
    from shardwise.engine import frameworks

    return frameworks.export(recipe_of(recipe, fields), to)


def validate(*paths: str | Path) -> dict[str, Any]:
    """Score the engine against files of measured cases; the document of ``shardwise validate --json``."""
    from shardwise.engine import validation

    return validation.validate([Path(path) for path in paths])
