"""The events of a trace: one frozen type per kind, told apart by ``kind``.

A trace tells a run in order: ``request``, ``plan``, then per round ``prompt``, ``llm_response``,
``tool_call``, ``tool_result``, ``candidate``, ``rejection``, ``projection``, ``reflection``; and
``note``, ``fallback``, ``budget``, ``error`` where they happen; ``result`` closes it. Every event may
carry more in ``data``.

The schema grows by optional fields and new kinds only; a change that old readers would misread raises
``SCHEMA_VERSION`` and adds an upgrade to :mod:`shardwise.traces.reader`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter

SCHEMA_VERSION = 1

Json = dict[str, JsonValue]


class EventBase(BaseModel):
    """What every event has. ``t_s`` is seconds since the run's start on the run's own clock."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    v: int = SCHEMA_VERSION
    """Schema version it was written with."""
    seq: int = Field(ge=0)
    """Position in the trace, from 0."""
    t_s: float
    prev: str
    """``hash`` of the event before; 64 zeros for the first."""
    hash: str
    """SHA-256 of this event's canonical JSON without ``hash``."""
    data: Json = Field(default_factory=dict)
    """Whatever else explains the event."""


class RequestEvent(EventBase):
    """What was asked. Enough, with the LLM's recorded answers, to run it again."""

    kind: Literal["request"] = "request"
    request: Json
    """The validated request (``TuneRequest`` as JSON)."""
    text: str | None = None
    """The user's own words, if any."""
    llm: str = "heuristic"
    """Who proposes: ``heuristic``, ``openai:MODEL``, ``replay:TRACE``, ..."""
    run_id: str = ""
    versions: dict[str, str] = Field(default_factory=dict)
    """Versions of the engine, of the package and of what the answer depends on."""


class PlanEvent(EventBase):
    """What the planner set out to try."""

    kind: Literal["plan"] = "plan"
    baseline: Json | None = None
    """The recipe that gains are counted from."""
    candidates: list[Json] = Field(default_factory=list)
    """Planned changes to the baseline, in order."""
    text: str = ""
    """The plan in words."""


class PromptEvent(EventBase):
    """One question to the LLM, whole."""

    kind: Literal["prompt"] = "prompt"
    number: int = Field(ge=0)
    """LLM calls of this run, from 0."""
    request_hash: str
    """Hash of messages, tools and answer schema, without ids (``request_hash`` of the agent)."""
    messages: list[Json]
    tools: list[Json] = Field(default_factory=list)
    answer_schema: Json | None = None
    """JSON schema that the answer must follow, if any."""
    model: str = ""


class LlmResponseEvent(EventBase):
    """The LLM's answer to prompt ``number``."""

    kind: Literal["llm_response"] = "llm_response"
    number: int = Field(ge=0)
    request_hash: str
    message: Json
    """``content``, ``tool_calls``, ``invalid_tool_calls`` and what the provider said of the stop."""
    usage: Json | None = None
    """Token counts as the provider gave them; None when it gave none."""
    model: str = ""
    wall_s: float = 0.0
    attempts: int = 1
    """Calls it took, retries included."""


class ToolCallEvent(EventBase):
    """The LLM called a tool."""

    kind: Literal["tool_call"] = "tool_call"
    name: str
    args: Json = Field(default_factory=dict)
    call_id: str = ""


class ToolResultEvent(EventBase):
    """What the tool answered."""

    kind: Literal["tool_result"] = "tool_result"
    name: str
    content: JsonValue
    ok: bool = True
    call_id: str = ""


class CandidateEvent(EventBase):
    """A recipe was proposed."""

    kind: Literal["candidate"] = "candidate"
    changes: Json
    """Fields that differ from the recipe it was derived from."""
    round: int = 0
    origin: str = ""
    """``user``, ``planner``, ``heuristic`` or ``llm``."""
    rationale: str = ""
    expected_gain_pct: float | None = None
    key: str | None = None
    """Recipe key; None when the proposal could not be made into a recipe."""
    recipe: Json | None = None


class RejectionEvent(EventBase):
    """A candidate was turned down before any oracle call."""

    kind: Literal["rejection"] = "rejection"
    by: str
    """``legality``, ``memory``, ``schema``, ``duplicate`` or ``budget``."""
    message: str
    rule: str = ""
    """Name of the broken rule (legality)."""
    round: int = 0
    changes: Json = Field(default_factory=dict)
    key: str | None = None


class ProjectionEvent(EventBase):
    """What the oracle said of a recipe."""

    kind: Literal["projection"] = "projection"
    key: str
    recipe: Json
    figures: Json
    """Key figures: ``tokens_per_s_per_gpu``, ``step_time_s``, ``peak_bytes``, ``verdict``, ..."""
    provenance: Json = Field(default_factory=dict)
    """Share of the step time that is ``measured``, ``interpolated``, ``simulated``."""
    round: int = 0
    origin: str = ""
    cached: bool = False
    """Whether it was known already, so that no oracle call was spent."""


class ReflectionEvent(EventBase):
    """A round looked back on: what was expected, what came, what was learned."""

    kind: Literal["reflection"] = "reflection"
    text: str
    round: int = 0
    best_key: str | None = None
    best: Json = Field(default_factory=dict)
    """Figures of the best recipe so far."""


class NoteEvent(EventBase):
    """Something worth knowing. Topic ``resume`` tells of an interrupted run and is no decision."""

    kind: Literal["note"] = "note"
    text: str
    topic: str = ""


class FallbackEvent(EventBase):
    """The LLM provider failed for good; the search goes on with another proposer."""

    kind: Literal["fallback"] = "fallback"
    provider: str
    reason: str
    to: str = "heuristic"


class BudgetEvent(EventBase):
    """What was spent, of what was allowed."""

    kind: Literal["budget"] = "budget"
    used: Json
    limits: Json = Field(default_factory=dict)
    exhausted: str | None = None
    """The limit that ended the search, if one did."""


class ErrorEvent(EventBase):
    """Something failed. ``where`` = ``llm``: prompt ``number`` got no answer."""

    kind: Literal["error"] = "error"
    message: str
    where: str = ""
    number: int | None = None


class ResultEvent(EventBase):
    """The answer of the run."""

    kind: Literal["result"] = "result"
    best: Json | None = None
    """``{"recipe": ..., "projection": ...}`` as in ``tune --json``."""
    baseline: Json | None = None
    gain_pct: float | None = None
    stopped_because: str = ""
    oracle_calls: int = 0
    rejected_by_memory: int = 0
    rejected_illegal: int = 0


Event = Annotated[
    RequestEvent
    | PlanEvent
    | PromptEvent
    | LlmResponseEvent
    | ToolCallEvent
    | ToolResultEvent
    | CandidateEvent
    | RejectionEvent
    | ProjectionEvent
    | ReflectionEvent
    | NoteEvent
    | FallbackEvent
    | BudgetEvent
    | ErrorEvent
    | ResultEvent,
    Field(discriminator="kind"),
]
"""Any event of a trace."""

KINDS: tuple[str, ...] = tuple(t.model_fields["kind"].default for t in get_args(get_args(Event)[0]))
"""The kinds of event, in the order above."""

EVENTS: TypeAdapter[Event] = TypeAdapter(Event)
"""Validates plain data into the event of its ``kind``."""


def as_data(event: Any) -> dict[str, Any]:
    """The event as plain JSON data, the way its line spells it."""
    data: dict[str, Any] = event.model_dump(mode="json")
    return data
