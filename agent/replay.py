"""Audit replay: the same graph, run again from a trace's request with its recorded LLM answers, compared.

Unlike resuming from a checkpoint this recomputes every decision and every number, without the network.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwise.agent.errors import ReplayDiverged
from shardwise.agent.oracle import Projector
from shardwise.agent.request import TuneRequest
from shardwise.engine.errors import ConfigError
from shardwise.engine.projection import project
from shardwise.traces import Event, read_trace
from shardwise.traces.compare import decisions, diff
from shardwise.traces.events import RequestEvent


@dataclass(frozen=True, slots=True)
class ReplayOutcome:
    """Whether a recorded run comes out the same today."""

    equal: bool
    steps: int
    """Recorded decisions that were compared."""
    first_difference: str | None
    """The first one that differs, in words; None when none does."""

    def as_json(self) -> dict[str, Any]:
        return {"equal": self.equal, "steps": self.steps, "first_difference": self.first_difference}


def replay_run(trace: str | os.PathLike[str], *, projector: Projector = project) -> ReplayOutcome:
    """Run the trace's search again and compare event by event.

    Raises :class:`ConfigError` or :class:`TraceFormatError` for an unreadable trace or one without request.
    """
    from shardwise.agent.session import tune

    then = read_trace(trace)
    asked = next((event for event in then if isinstance(event, RequestEvent)), None)
    if asked is None:
        raise ConfigError(
            f"trace {os.fspath(trace)!r} holds no request, so it cannot be run again", field="trace"
        )
    request = TuneRequest.build(dict(asked.request))
    model = _recorded(trace, then)
    steps = len(decisions(then))
    # The folder's name is not compared, and nothing of a replay is kept.
    with tempfile.TemporaryDirectory(prefix="shardwise-replay-") as folder:
        again = Path(folder) / "run"
        if model is None:
            # A search that asked no LLM is run by the proposer that made it, under the name it had.
            request = request.with_(llm="heuristic", base_url=None)
        try:
            tune(request, out=again, llm=model, text=asked.text, projector=projector)
        except ReplayDiverged as err:
            return ReplayOutcome(False, steps, str(err))
        now = read_trace(again / "trace.jsonl")
    found = diff([_unnamed(event) for event in then], [_unnamed(event) for event in now])
    return ReplayOutcome(found is None, steps, None if found is None else found.words)


def _recorded(trace: str | os.PathLike[str], events: list[Event]) -> Any:
    """A model that gives the recorded answers; None when the run asked none."""
    if not any(event.kind == "prompt" for event in events):
        return None
    from shardwise.agent.replay_model import ReplayModel

    return ReplayModel.from_trace(trace)


def _unnamed(event: Event) -> Event:
    """The event without the proposer's name, which a replay necessarily has different."""
    if not isinstance(event, RequestEvent):
        return event
    request = {key: value for key, value in event.request.items() if key not in ("llm", "base_url")}
    return event.model_copy(update={"llm": "", "request": request})
