"""``TuneRequest``: what a search is asked for, validated once, before anything runs.

A request is complete and immutable: model, cluster, which fields may not move, budgets, who proposes.
Text such as ``tune Mixtral 8x22B on 32 MI355X`` becomes one through
:func:`shardwise.agent.request_text.parse_request`, re-exported here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from shardwise.agent.request_text import PartialRequest, parse_request
from shardwise.engine import catalog
from shardwise.engine.cluster import Cluster
from shardwise.engine.errors import ConfigError, unknown_name
from shardwise.engine.model import Model
from shardwise.engine.recipe import Recipe, RecipePrecision, Size
from shardwise.engine.results import DEFAULT_MARGIN
from shardwise.engine.spec import Spec

__all__ = ["PartialRequest", "TuneRequest", "parse_request"]

Objective = Literal["tokens_per_s_per_gpu", "tflops_per_gpu", "mfu"]
_OBJECTIVE_ALIASES = {"throughput": "tokens_per_s_per_gpu", "tokens/s/gpu": "tokens_per_s_per_gpu"}
_TUNABLE = tuple(name for name in Recipe.model_fields if name not in ("model", "cluster"))


class TuneRequest(Spec):
    """One search. Build it with :meth:`Spec.build` (or :meth:`of`) for one-line errors."""

    model: Model
    cluster: Cluster
    objective: Objective = "tokens_per_s_per_gpu"
    """The figure of a projection to maximise."""
    fixed: dict[str, Any] = Field(default_factory=dict)
    """Recipe field -> the one value it may have in every recipe that is tried."""
    recipe: dict[str, Any] = Field(default_factory=dict)
    """The user's own starting recipe: recipe fields without model and cluster; empty = none given."""
    allow_precision: tuple[RecipePrecision, ...] = ()
    """Precisions that may be tried besides the baseline's: they change numerics, so they are asked for."""
    gbs: Size | None = None
    """Global batch size, sequences; None = the baseline's. Never searched: it changes the training."""
    seq_len: Size | None = None
    """Sequence length, tokens; None = the baseline's. Never searched."""
    budget_calls: PositiveInt = 60
    """Most oracle calls (recipes projected); a hard limit."""
    budget_time_s: PositiveFloat | None = None
    """Most wall-clock seconds, over all resumed parts together; None = no limit."""
    budget_tokens: PositiveInt | None = None
    """Most LLM tokens, prompts and answers together, as far as the provider counts them; None = no limit.
    When they are used up the heuristic proposer goes on."""
    margin: float = Field(default=DEFAULT_MARGIN, ge=0.0, lt=1.0)
    """Share of the device memory that must stay free."""
    seed: NonNegativeInt = 0
    """Breaks ties between equally promising proposals."""
    llm: str = Field(default="heuristic", min_length=1)
    """Who proposes: ``heuristic``, ``replay:TRACE`` or ``PROVIDER:MODEL``."""
    base_url: str | None = None
    """Address of an OpenAI-compatible server for ``llm``."""
    prompt_mode: Literal["auto", "full", "compact"] = "auto"
    """``compact``: one short prompt and a JSON answer, for small local models. ``auto``: compact for
    local servers (``llamacpp:``, or a loopback ``base_url``), else full."""

    @classmethod
    def build(cls, data: Any, *, where: str = "request") -> Self:
        """Validate ``data``; names of models and clusters are looked up in the catalog.

        Raises :class:`ConfigError` naming the field, the value, and what is allowed.
        """
        if not isinstance(data, Mapping):
            raise ConfigError(f"{where} must be a mapping of fields, not {type(data).__name__}", field=where)
        filled = {key: value for key, value in data.items() if value is not None}
        words = "tune Mixtral 8x22B on 32 MI355X"
        for name, example in (("model", "mixtral-8x22b"), ("cluster", "mi355x:4x8")):
            if name not in filled:
                raise ConfigError(
                    f"{name} is missing: say which, e.g. '{words}' or {name}={example}", field=name
                )
        filled["model"] = catalog.model(filled["model"])
        filled["cluster"] = catalog.cluster(filled["cluster"])
        objective = filled.get("objective")
        if isinstance(objective, str):
            filled["objective"] = _OBJECTIVE_ALIASES.get(objective.lower(), objective)
        for name in ("fixed", "recipe"):
            if not isinstance(filled.get(name, {}), Mapping):
                raise ConfigError(
                    f"{where}: {name} = {str(filled[name])[:60]!r}: needs a mapping of recipe fields",
                    field=name,
                )
        fixed = dict(filled.get("fixed", {}))
        for name in ("gbs", "seq_len"):
            if name in fixed:
                filled.setdefault(name, fixed[name])
                if filled[name] != fixed.pop(name):
                    raise ConfigError(f"{name}={filled[name]} contradicts the fixed {name}", field=name)
        filled["fixed"] = _checked(fixed, filled["model"], filled["cluster"], "fixed")
        own = {k: v for k, v in dict(filled.get("recipe", {})).items() if k not in ("model", "cluster")}
        filled["recipe"] = _checked(own, filled["model"], filled["cluster"], "recipe")
        filled["allow_precision"] = tuple(
            _checked({"precision": word}, filled["model"], filled["cluster"], "allow_precision")["precision"]
            for word in _words(filled.get("allow_precision", ()))
        )
        return super().build(filled, where=where)

    @classmethod
    def of(cls, text: str = "", **fields: Any) -> Self:
        """A request from words, with explicit ``fields`` winning over what the words say."""
        return cls.build(parse_request(text).merged(**fields))

    def as_json(self) -> dict[str, Any]:
        """Builtins only; ``TuneRequest.build(request.as_json()) == request``."""
        data = self.model_dump(mode="json", exclude={"model", "cluster"})
        return {
            "model": catalog.model_spec(self.model),
            "cluster": catalog.cluster_spec(self.cluster),
            **{key: value for key, value in data.items() if value is not None},
        }


def _checked(fields: dict[str, Any], model: Model, cluster: Cluster, where: str) -> dict[str, Any]:
    """``fields`` as a recipe spells them (aliases resolved), or a ConfigError for the first bad one."""
    for name in fields:
        if name not in _TUNABLE:
            raise unknown_name("recipe field", str(name), _TUNABLE)
    if not fields:
        return {}
    complete = {"gbs": 1, "seq_len": 1, **fields, "model": model, "cluster": cluster}
    recipe = Recipe.build(complete, where=where)
    dumped = recipe.model_dump(mode="json", include=set(fields))
    return {name: dumped[name] for name in sorted(fields)}


def _words(value: Any) -> list[Any]:
    if isinstance(value, str):
        return [word for word in value.replace(",", " ").split() if word]
    if not isinstance(value, (list, tuple)):
        raise ConfigError(
            f"allow_precision = {str(value)[:60]!r}: needs precisions, as in ['fp8']", field="allow_precision"
        )
    return list(value)
