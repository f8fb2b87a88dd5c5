"""The graph's state: small, bounded, builtins only.

Recipes that wait, keys of trials, counters, the last lessons. What the oracle said is in the oracle's
file, what was said and decided is in the trace; the state only names them, so a checkpoint stays a
few kilobytes however long the search.
"""

from __future__ import annotations

from typing import Any, TypedDict

MAX_NOTES = 12
"""Lessons kept in the state; older ones remain in the trace."""


class Candidate(TypedDict):
    """A proposed recipe on its way through the filter to the oracle."""

    fields: dict[str, Any]
    """Recipe fields without model and cluster."""
    changes: dict[str, Any]
    """What it changes in the recipe it was derived from."""
    origin: str
    """``user``, ``reference``, ``constructed``, ``planner``, ``heuristic`` or ``llm``."""
    axis: str
    """The axis a sweep moved; empty for combinations."""
    rationale: str
    expected_gain_pct: float | None
    """Against the incumbent at the time; None when nothing was promised."""
    reference: bool
    """The baseline: it is projected even when it does not fit, so that gains have a reference."""


class TuneState(TypedDict, total=False):
    """State of one search. Nodes return only the keys that they change."""

    request: dict[str, Any] | str
    """Only for running the graph alone (LangGraph's own tooling): the request, when no context is given."""
    queue: list[Candidate]
    """Proposed, not yet filtered."""
    batch: list[Candidate]
    """Passed the filter, not yet projected."""
    results: list[dict[str, Any]]
    """Last batch: key, expected gain, gain, axis, rationale, in order."""
    trials: list[str]
    """Keys in the order the oracle was first asked; its length is the number of oracle calls."""
    baseline: str
    """Key of the baseline's trial."""
    incumbent: str | None
    """Key of the best trial that is legal and fits; None while there is none."""
    round: int
    """0 is the planner's round."""
    stagnant: int
    """Rounds in a row without a gain worth the name."""
    proposer: str
    """``llm`` or ``heuristic``: who proposes next."""
    fallback: str | None
    """Why the LLM was given up, in one line."""
    rejected_by_memory: int
    rejected_illegal: int
    rejected: list[str]
    """The last rejections in words, for the LLM."""
    notes: list[str]
    """Lessons, newest last."""
    events: int
    """Trace events written when this state was saved."""
    spent_s: float
    """Wall-clock seconds spent when this state was saved."""
    stop: str | None
    """Why the search ended, in words."""
    result: dict[str, Any]
    """The answer, once there is one."""


def started() -> TuneState:
    """The state before the first node."""
    return TuneState(
        queue=[],
        batch=[],
        results=[],
        trials=[],
        incumbent=None,
        round=0,
        stagnant=0,
        fallback=None,
        rejected_by_memory=0,
        rejected_illegal=0,
        rejected=[],
        notes=[],
        events=0,
        spent_s=0.0,
        stop=None,
    )
