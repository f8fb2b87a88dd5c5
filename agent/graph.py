"""The state machine: planner -> memory_filter -> projection -> reflection -> hypothesizer -> ... -> report.

``graph`` is compiled without a checkpointer, for LangGraph's own tooling and for embedding; a session
compiles its own with one. Given only ``{"request": "tune Mixtral 8x22B on 32 MI355X"}`` it runs a whole
search; :func:`shardwise.agent.session.tune` adds the run folder, resumption and the result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from langgraph.graph import END, START, StateGraph

from shardwise.agent.context import Context
from shardwise.agent.nodes.hypothesize import hypothesizer
from shardwise.agent.nodes.memory_filter import memory_filter
from shardwise.agent.nodes.plan import planner
from shardwise.agent.nodes.project import projection
from shardwise.agent.nodes.reflect import PATIENCE, reflection
from shardwise.agent.nodes.report import report
from shardwise.agent.state import TuneState

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.graph.state import CompiledStateGraph

NODES_PER_ROUND = 4


def recursion_limit(budget_calls: int) -> int:
    """Supersteps that a search may take at most: every round scores something or counts as stagnant.

    Rounds that score nothing end the search after a few, so rounds <= calls * (patience + 1) + slack.
    LangGraph's own default would let a runaway loop go on for 10,000 steps.
    """
    return NODES_PER_ROUND * ((PATIENCE + 1) * budget_calls + 10)


def build_graph(
    checkpointer: BaseCheckpointSaver[str] | None = None,
) -> CompiledStateGraph[Any, Any, Any, Any]:
    """The compiled graph; its context is a :class:`Context`."""
    builder = StateGraph(TuneState, context_schema=Context)
    builder.add_node("planner", planner)
    builder.add_node("memory_filter", memory_filter)
    builder.add_node("projection", projection)
    builder.add_node("reflection", reflection)
    builder.add_node("hypothesizer", hypothesizer)
    builder.add_node("report", report)
    builder.add_edge(START, "planner")
    builder.add_edge("planner", "memory_filter")
    builder.add_edge("memory_filter", "projection")
    builder.add_edge("projection", "reflection")
    builder.add_conditional_edges("reflection", after_reflection)
    builder.add_conditional_edges("hypothesizer", after_hypothesizer)
    builder.add_edge("report", END)
    return builder.compile(checkpointer=checkpointer, name="shardwise")


def after_reflection(state: TuneState) -> Literal["hypothesizer", "report"]:
    """Go on, or report when the search is over."""
    return "report" if state.get("stop") else "hypothesizer"


def after_hypothesizer(state: TuneState) -> Literal["memory_filter", "report"]:
    """Filter the candidates, or report when none is left."""
    return "report" if state.get("stop") else "memory_filter"


graph = build_graph().with_config(recursion_limit=recursion_limit(1000))
"""The compiled graph without a checkpointer."""


def __getattr__(name: str) -> Any:
    """Let the module stand for its graph: ``shardwise.agent.graph.invoke(...)`` works on either."""
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(graph, name)
