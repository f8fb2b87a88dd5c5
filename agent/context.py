"""What the nodes work with at run time: passed to the graph as its context, never saved in its state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardwise.agent.baseline import Baseline
from shardwise.agent.budget import Budget
from shardwise.agent.journal import Journal
from shardwise.agent.oracle import Oracle
from shardwise.agent.request import TuneRequest
from shardwise.agent.searchspace import SearchSpace
from shardwise.agent.state import TuneState
from shardwise.agent.trial import Trial

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

    from shardwise.agent.retry import RetryPolicy


@dataclass(frozen=True, slots=True, eq=False)
class Context:
    """Dependencies of one run."""

    request: TuneRequest
    baseline: Baseline
    space: SearchSpace
    oracle: Oracle
    journal: Journal
    budget: Budget
    llm: BaseChatModel | None = None
    """The live (or replayed) chat model; None for the heuristic proposer."""
    llm_name: str = "heuristic"
    """Who proposes, as it is told in the trace."""
    compact: bool = False
    """Whether the LLM gets the short prompt and answers in JSON."""
    retry: RetryPolicy | None = None
    text: str | None = None
    """The user's own words."""
    run_id: str = ""
    versions: dict[str, str] = field(default_factory=dict)

    def trials(self, state: TuneState) -> list[Trial]:
        """The trials of this pass, in the order the oracle was asked."""
        return [self.oracle.get(key) for key in state["trials"]]

    def incumbent(self, state: TuneState) -> Trial | None:
        """The best trial that is legal and fits."""
        key = state.get("incumbent")
        return self.oracle.get(key) if key is not None else None

    def leave(self, update: TuneState) -> TuneState:
        """A node's update with what every node saves: how far the trace is, how long it took."""
        return TuneState(**{**update, "events": self.journal.position, "spent_s": self.budget.elapsed_s()})


def enter(state: TuneState, context: Context | None) -> Context:
    """The context of a node that starts (or starts again): the trace wound back to the state's checkpoint.

    Without a context (the graph run alone, by LangGraph's own tooling) one is made from the state's request.
    """
    if context is None:
        from shardwise.agent.session import standalone_context

        context = standalone_context(state.get("request"))
    context.journal.rewind(state.get("events", 0))
    return context
