"""A chat model that answers from a trace: the same run again, without the network.

The n-th question gets the n-th recorded answer, if it *is* the recorded question: the hash of its
messages, tools and answer schema must be the recorded one, otherwise :class:`ReplayDiverged` names the
first line that differs. Where the recording failed for good (an ``error`` event), the replay fails with
the same :class:`ProviderError`, so that a run that fell back falls back again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable, RunnableLambda
from pydantic import BaseModel, PrivateAttr

from shardwise.agent.errors import ProviderError, ReplayDiverged
from shardwise.agent.llm_messages import (
    answer_from,
    data_hash,
    request_data,
    request_hash,
    schema_data,
    tool_data,
    without_ids,
)
from shardwise.traces.canonical import canonical
from shardwise.traces.events import ErrorEvent, Event, LlmResponseEvent, PromptEvent
from shardwise.traces.reader import read_trace

__all__ = ["Exchange", "ReplayModel", "exchanges", "request_hash"]


@dataclass(frozen=True, slots=True)
class Exchange:
    """One recorded question with its answer; ``failure`` instead of ``response`` when it got none."""

    prompt: PromptEvent
    response: LlmResponseEvent | None = None
    failure: str | None = None


def exchanges(events: Iterable[Event]) -> list[Exchange]:
    """The questions of a trace with their answers, in order. A question that was cut off (a killed run
    asks it again when it is resumed) is left out.
    """
    asked: PromptEvent | None = None
    done: list[Exchange] = []
    for event in events:
        if isinstance(event, PromptEvent):
            asked = event
        elif asked is not None and isinstance(event, LlmResponseEvent) and event.number == asked.number:
            done.append(Exchange(asked, response=event))
            asked = None
        elif asked is not None and isinstance(event, ErrorEvent) and event.where == "llm":
            done.append(Exchange(asked, failure=event.message))
            asked = None
    return done


class ReplayModel(BaseChatModel):
    """Answers from recorded exchanges, in order; tools and answer schemas are checked like the messages."""

    recorded: list[Exchange]
    source: str = "trace"
    """What the exchanges were read from, for messages."""
    model_name: str = "recorded"
    _next: int = PrivateAttr(default=0)

    @classmethod
    def from_trace(cls, path: str | os.PathLike[str], *, start: int = 0) -> ReplayModel:
        """A model that answers from the trace at ``path``, from answer ``start`` on (for a resumed run).

        Raises :class:`ConfigError` or :class:`TraceFormatError` when the trace cannot be read. A trace
        without LLM answers is fine as long as nothing is asked.
        """
        found = exchanges(read_trace(path))
        name = found[0].prompt.model if found else "recorded"
        model = cls(recorded=found, source=os.fspath(path), model_name=name, metadata={"llm": name})
        model._next = start
        return model

    @property
    def answered(self) -> int:
        """Answers given so far, counted from the start of the recording."""
        return self._next

    @property
    def _llm_type(self) -> str:
        return "replay"

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | Any],
        *,
        tool_choice: str | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Bind tools as a live model would. ``tool_choice`` is not part of the recorded question."""
        return self.bind(tools=[tool_data(tool) for tool in tools], **kwargs)

    def with_structured_output(
        self,
        schema: dict[str, Any] | type[BaseModel],
        *,
        method: str = "json_schema",
        include_raw: bool = False,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, Any]:
        """Ask with an answer schema (``json_schema``, ``json_mode``) or through a tool
        (``function_calling``)."""
        if method == "function_calling":
            return super().with_structured_output(schema, include_raw=include_raw, **kwargs)
        parser: Any = (
            PydanticOutputParser(pydantic_object=schema) if isinstance(schema, type) else JsonOutputParser()
        )
        asked: Runnable[LanguageModelInput, AIMessage] = self.bind(answer_schema=schema_data(schema))
        if not include_raw:
            parsed: Runnable[LanguageModelInput, Any] = asked | parser
            return parsed

        def with_raw(message: AIMessage) -> dict[str, Any]:
            try:
                return {"raw": message, "parsed": parser.invoke(message), "parsing_error": None}
            except ValueError as err:  # OutputParserException and pydantic's are both ValueErrors
                return {"raw": message, "parsed": None, "parsing_error": err}

        return asked | RunnableLambda(with_raw)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        number = self._next
        if number >= len(self.recorded):
            raise ReplayDiverged(
                f"prompt {number}: the recording {self.source!r} holds {len(self.recorded)} answers, "
                "but the run asks for one more",
                prompt=number,
            )
        exchange = self.recorded[number]
        now = request_data(messages, kwargs.get("tools") or (), kwargs.get("answer_schema"))
        if not data_hash(now) == _recorded_hash(exchange.prompt) == exchange.prompt.request_hash:
            raise ReplayDiverged(first_difference(exchange.prompt, now, number), prompt=number)
        self._next = number + 1
        if exchange.response is None:
            raise ProviderError(
                exchange.failure or "the recorded call failed", provider=exchange.prompt.model
            )
        answer = answer_from(exchange.response.message, exchange.response.usage)
        answer.response_metadata["model_name"] = exchange.response.model
        return ChatResult(generations=[ChatGeneration(message=answer)])


def _recorded_hash(prompt: PromptEvent) -> str:
    """The hash of the recorded text, as against the recorded hash: they differ in an edited trace."""
    return data_hash(
        {"messages": prompt.messages, "tools": prompt.tools, "answer_schema": prompt.answer_schema}
    )


def first_difference(then: PromptEvent, now: dict[str, Any], number: int) -> str:
    """In one line: where the question ``now`` first differs from the recorded one."""
    old, new = without_ids(then.messages), without_ids(now["messages"])
    for index, (was, is_) in enumerate(zip_longest(old, new)):
        where = f"prompt {number}, message {index}"
        if was is None:
            return f"{where} ({is_['role']}): new, not in the recording: {_shown(is_['content'])}"
        if is_ is None:
            return f"{where} ({was['role']}): in the recording, missing now: {_shown(was['content'])}"
        if was["role"] != is_["role"]:
            return f"{where}: was from {was['role']}, is from {is_['role']}"
        if was["content"] != is_["content"]:
            return f"{where} ({was['role']}), {_line(str(was['content']), str(is_['content']))}"
        if was != is_:
            key = min(key for key in {*was, *is_} if was.get(key) != is_.get(key))
            return f"{where} ({was['role']}): {key} was {_shown(was.get(key))}, is {_shown(is_.get(key))}"
    for index, (tool_was, tool_is) in enumerate(zip_longest(then.tools, now["tools"])):
        if tool_was != tool_is:
            return f"prompt {number}, tool {index}: was {_tool(tool_was)}, is {_tool(tool_is)}"
    if then.answer_schema != now["answer_schema"]:
        was, is_ = _shown(then.answer_schema), _shown(now["answer_schema"])
        return f"prompt {number}: the answer schema was {was}, is {is_}"
    return f"prompt {number}: the recorded hash {then.request_hash} does not fit its own text (edited?)"


def _line(was: str, is_: str) -> str:
    for index, (old, new) in enumerate(zip_longest(was.splitlines(), is_.splitlines()), start=1):
        if old != new:
            return f"line {index}: was {_shown(old)}, is {_shown(new)}"
    return f"line ends: was {_shown(was)}, is {_shown(is_)}"


def _tool(tool: Any) -> str:
    if not isinstance(tool, dict):
        return "absent"
    function = tool.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    return f"{name} {_shown(function)}"


def _shown(value: Any) -> str:
    if value is None:
        return "absent"
    text = repr(value) if isinstance(value, str) else canonical(value)
    return text if len(text) <= 90 else text[:87] + "..."
