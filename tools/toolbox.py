"""The tools as LangChain tools, and running one from an LLM's call without ever raising for its mistakes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field, ValidationError

from shardwise.engine.errors import ConfigError
from shardwise.engine.spec import one_line
from shardwise.tools import functions
from shardwise.tools.bench import Bench
from shardwise.tools.propose import PROPOSE, Proposals

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool


class MemoryCheckArgs(BaseModel):
    """Arguments of ``memory_check``."""

    changes: dict[str, Any] = Field(
        description="Recipe field -> new value, against the incumbent; {} for itself."
    )


class LegalValuesArgs(BaseModel):
    """Arguments of ``legal_values``."""

    field: str = Field(description="Recipe field, e.g. pp.")


class BottleneckArgs(BaseModel):
    """Arguments of ``bottleneck``."""

    trial: str = Field(description="Trial name, e.g. T3.")


class CompareArgs(BaseModel):
    """Arguments of ``compare_trials``."""

    first: str = Field(description="Trial name, e.g. T0.")
    second: str = Field(description="Trial name, e.g. T7.")


class NoArgs(BaseModel):
    """No arguments."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """One tool: what the LLM reads of it and what it runs."""

    name: str
    description: str
    args: type[BaseModel]
    run: Callable[[Bench, Any], dict[str, Any]] | None
    """None for ``propose``: the agent itself reads its arguments."""


TOOLS: tuple[ToolSpec, ...] = (
    ToolSpec(
        "memory_check",
        "Is the incumbent with these changes legal and does it fit? Memory of its fullest stage. Free.",
        MemoryCheckArgs,
        lambda bench, args: functions.memory_check(bench, args.changes),
    ),
    ToolSpec(
        "legal_values",
        "Values of one field: which are legal and fit when only that field of the incumbent changes. Free.",
        LegalValuesArgs,
        lambda bench, args: functions.legal_values(bench, args.field),
    ),
    ToolSpec(
        "bottleneck",
        "Where the step time and memory of a trial go.",
        BottleneckArgs,
        lambda bench, args: functions.bottleneck(bench, args.trial),
    ),
    ToolSpec(
        "compare_trials",
        "What differs between two trials, in the recipe and in the outcome.",
        CompareArgs,
        lambda bench, args: functions.compare_trials(bench, args.first, args.second),
    ),
    ToolSpec(
        "read_notes", "Lessons of earlier rounds.", NoArgs, lambda bench, _args: functions.read_notes(bench)
    ),
    ToolSpec(PROPOSE, "End the round: the candidates to score next.", Proposals, None),
)
"""Every tool, in the order the LLM reads them."""


def run_tool(bench: Bench, name: str, args: Any) -> tuple[bool, dict[str, Any]]:
    """``(ok, content)`` of one call. A mistake of the caller's is content with ``error``."""
    spec = next((tool for tool in TOOLS if tool.name == name and tool.run is not None), None)
    if spec is None or spec.run is None:
        return False, {"error": f"unknown tool {name!r}; known: {', '.join(tool.name for tool in TOOLS)}"}
    try:
        parsed = spec.args.model_validate(args)
    except ValidationError as err:
        return False, {"error": one_line(err, name)}
    try:
        return True, spec.run(bench, parsed)
    except ConfigError as err:
        return False, {"error": str(err)}


def langchain_tools(bench: Bench) -> list[BaseTool]:
    """The tools bound to ``bench``, for any chat model's ``bind_tools`` or a ``ToolNode``."""
    from langchain_core.tools import StructuredTool

    def bound(spec: ToolSpec) -> Callable[..., dict[str, Any]]:
        def call(**kwargs: Any) -> dict[str, Any]:
            if spec.run is None:
                return kwargs
            return run_tool(bench, spec.name, kwargs)[1]

        return call

    return [
        StructuredTool.from_function(
            func=bound(spec), name=spec.name, description=spec.description, args_schema=spec.args
        )
        for spec in TOOLS
    ]
