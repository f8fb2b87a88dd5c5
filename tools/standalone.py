"""Tools that stand on their own: a recipe in, the engine's answer out. Served over MCP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from shardwise.engine import catalog, legality
from shardwise.engine.errors import ShardwiseError
from shardwise.engine.memory import report
from shardwise.engine.projection import project
from shardwise.engine.recipe_io import load_recipe
from shardwise.engine.spec import one_line
from shardwise.engine.sweep import sweep

MAX_TOP = 100


class _Args(BaseModel):
    model_config = ConfigDict(extra="forbid")


class RecipeArgs(_Args):
    """Arguments of the tools that look at one recipe."""

    recipe: dict[str, Any] = Field(
        description="Recipe fields: model and cluster (names such as mixtral-8x22b and mi355x:4x8), tp, pp, "
        "vpp, cp, ep, etp, mbs, gbs, seq_len, dp_sharding, recompute, precision, ..."
    )


class SweepArgs(RecipeArgs):
    """Arguments of ``sweep``."""

    fixed: list[str] = Field(default_factory=list, description="Fields that keep the recipe's value.")
    top: PositiveInt = Field(default=10, le=MAX_TOP, description="How many of the best to return.")


class NoArgs(_Args):
    """No arguments."""


@dataclass(frozen=True, slots=True)
class StandaloneTool:
    """One tool: name, what a client reads of it, and what it runs."""

    name: str
    description: str
    args: type[BaseModel]
    run: Callable[[Any], dict[str, Any]]


def _project(args: RecipeArgs) -> dict[str, Any]:
    return project(load_recipe(args.recipe)).as_json()


def _memory(args: RecipeArgs) -> dict[str, Any]:
    recipe = load_recipe(args.recipe)
    broken = legality.check(recipe)
    if broken:
        return {"legal": False, "violations": [violation.as_json() for violation in broken]}
    return {"legal": True, **report(recipe).as_json()}


def _legal(args: RecipeArgs) -> dict[str, Any]:
    broken = legality.check(load_recipe(args.recipe))
    return {"legal": not broken, "violations": [violation.as_json() for violation in broken]}


def _sweep(args: SweepArgs) -> dict[str, Any]:
    found: dict[str, Any] = sweep(load_recipe(args.recipe), fixed=args.fixed, top=args.top).as_json()
    return found


def _catalog(_args: NoArgs) -> dict[str, Any]:
    return {"models": sorted(catalog.models()), "gpus": sorted(catalog.gpus())}


STANDALONE: tuple[StandaloneTool, ...] = (
    StandaloneTool(
        "project", "Step time, throughput, MFU and memory of one training recipe.", RecipeArgs, _project
    ),
    StandaloneTool(
        "memory", "Whether a recipe fits, itemised per pipeline stage (bytes).", RecipeArgs, _memory
    ),
    StandaloneTool(
        "legal", "The rules that a recipe breaks, with the nearest legal values.", RecipeArgs, _legal
    ),
    StandaloneTool("sweep", "The fastest legal recipes that fit around a given one.", SweepArgs, _sweep),
    StandaloneTool("catalog", "Names of the models and GPUs that are known.", NoArgs, _catalog),
)
"""Every tool, in the order a client lists them."""


def call(tool: StandaloneTool, args: Any) -> tuple[bool, dict[str, Any]]:
    """``(ok, content)``; a mistake in the arguments is content with ``error``, never an exception."""
    try:
        return True, tool.run(tool.args.model_validate(args))
    except ValidationError as err:
        return False, {"error": one_line(err, tool.name)}
    except ShardwiseError as err:
        return False, {"error": str(err)}
