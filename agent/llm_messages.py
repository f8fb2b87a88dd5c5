"""LLM messages and tools as plain data: what the trace records and what a request's hash covers.

The same text, tool calls, tools and answer schema give the same hash, whatever the random ids of messages and
tool calls. Prompts must hold nothing that changes from run to run (clock times, paths): that would read as a
different question when it is replayed.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import BaseModel

from shardwise.traces.canonical import canonical, jsonable
from shardwise.traces.redact import redact

MAX_DEPTH = 32
"""Deepest nesting of tool arguments; ours need 4."""

_ROLES = {"human": "user", "ai": "assistant"}


def message_data(message: BaseMessage) -> dict[str, Any]:
    """One message: ``role``, ``content`` (its text), and where it has them ``tool_calls``,
    ``tool_call_id``."""
    data: dict[str, Any] = {"role": _ROLES.get(message.type, message.type), "content": str(message.text)}
    if isinstance(message, AIMessage):
        if message.tool_calls:
            data["tool_calls"] = [
                {"name": call["name"], "args": jsonable(call["args"]), "id": call["id"]}
                for call in message.tool_calls
            ]
        if message.invalid_tool_calls:
            data["invalid_tool_calls"] = [
                {"name": call["name"], "args": call["args"], "id": call["id"], "error": call["error"]}
                for call in message.invalid_tool_calls
            ]
    if isinstance(message, ToolMessage):
        data["tool_call_id"] = message.tool_call_id
    return data


def answer_data(message: AIMessage) -> dict[str, Any]:
    """An LLM's answer: as :func:`message_data`, with ``reasoning`` and ``finish_reason`` where given."""
    data = message_data(message)
    reasoning = "\n".join(
        str(block.get("reasoning") or "") for block in message.content_blocks if block["type"] == "reasoning"
    ).strip()
    if reasoning:
        data["reasoning"] = reasoning
    reason = message.response_metadata.get("finish_reason") or message.response_metadata.get("stop_reason")
    if reason:
        data["finish_reason"] = str(reason)
    return data


def answer_from(data: Mapping[str, Any], usage: Mapping[str, Any] | None = None) -> AIMessage:
    """The message that :func:`answer_data` described."""
    fields: dict[str, Any] = {"content": data.get("content", "")}
    if data.get("tool_calls"):
        fields["tool_calls"] = [{**call, "type": "tool_call"} for call in data["tool_calls"]]
    if data.get("invalid_tool_calls"):
        fields["invalid_tool_calls"] = [
            {**call, "type": "invalid_tool_call"} for call in data["invalid_tool_calls"]
        ]
    if usage:
        fields["usage_metadata"] = dict(usage)
    if data.get("finish_reason"):
        fields["response_metadata"] = {"finish_reason": data["finish_reason"]}
    return AIMessage(**fields)


def cleaned(answer: AIMessage) -> AIMessage:
    """The answer with tool arguments that JSON can hold: NaN and infinities become words, which no
    number field accepts. Raises ``ValueError`` for arguments nested deeper than ``MAX_DEPTH``.
    """
    calls = [{**call, "args": _finite(call["args"], 0)} for call in answer.tool_calls]
    return answer if calls == answer.tool_calls else answer.model_copy(update={"tool_calls": calls})


def _finite(value: Any, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise ValueError(f"tool arguments are nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _finite(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item, depth + 1) for item in value]
    return value


def tool_data(tool: Any) -> dict[str, Any]:
    """A tool as the LLM reads it: its function schema in OpenAI's spelling."""
    schema: dict[str, Any] = jsonable(convert_to_openai_tool(tool))
    return schema


def schema_data(schema: type[BaseModel] | Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A JSON schema with the ``title`` that providers ask for; None stays None."""
    if schema is None:
        return None
    plain = schema.model_json_schema() if isinstance(schema, type) else dict(schema)
    data: dict[str, Any] = {"title": "Answer", **jsonable(plain)}
    return data


def request_data(
    messages: Sequence[BaseMessage],
    tools: Sequence[Any] = (),
    schema: type[BaseModel] | Mapping[str, Any] | None = None,
    secrets: Sequence[str] = (),
) -> dict[str, Any]:
    """One question as it is recorded: ``messages``, ``tools``, ``answer_schema``; redacted."""
    data: dict[str, Any] = redact(
        {
            "messages": [message_data(message) for message in messages],
            "tools": [tool_data(tool) for tool in tools],
            "answer_schema": schema_data(schema),
        },
        secrets,
    )
    return data


def without_ids(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The recorded messages with the random ids of tool calls replaced by their order of appearance."""
    order: dict[str, str] = {}

    def ordinal(call_id: Any) -> str:
        return order.setdefault(str(call_id), f"call-{len(order)}")

    plain: list[dict[str, Any]] = []
    for message in messages:
        copy = dict(message)
        for field in ("tool_calls", "invalid_tool_calls"):
            if field in copy:
                copy[field] = [{**call, "id": ordinal(call.get("id"))} for call in copy[field]]
        if "tool_call_id" in copy:
            copy["tool_call_id"] = ordinal(copy["tool_call_id"])
        plain.append(copy)
    return plain


def data_hash(request: Mapping[str, Any]) -> str:
    """Hash (first 16 hex digits of SHA-256) of what :func:`request_data` gave."""
    plain = {
        "messages": without_ids(request["messages"]),
        "tools": request["tools"],
        "answer_schema": request["answer_schema"],
    }
    return hashlib.sha256(canonical(plain).encode()).hexdigest()[:16]


def request_hash(
    messages: Sequence[BaseMessage],
    tools: Sequence[Any] = (),
    schema: type[BaseModel] | Mapping[str, Any] | None = None,
    secrets: Sequence[str] = (),
) -> str:
    """Hash of one question: its messages, tools and answer schema, redacted and without random ids."""
    return data_hash(request_data(messages, tools, schema, secrets))
