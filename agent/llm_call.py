"""One question to the LLM: recorded, retried, answered.

:func:`ask` is the only way the agent talks to a model. It writes a ``prompt`` event, calls, retries
(:mod:`shardwise.agent.retry`), and writes an ``llm_response`` event, or an ``error`` event (``where`` =
``llm``) before it raises. The same function serves a live model and a recorded one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from json import JSONDecodeError
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from pydantic import BaseModel, SecretStr

from shardwise.agent.errors import ProviderError
from shardwise.agent.llm_messages import answer_data, cleaned, data_hash, request_data, schema_data
from shardwise.agent.retry import RetryPolicy, UnreadableReply, call_with_retry
from shardwise.engine.errors import ShardwiseError
from shardwise.traces.writer import TraceWriter

_UNREADABLE = (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError)
"""What client libraries raise when a reply with status 200 is not what they expect."""


def ask(
    model: BaseChatModel,
    messages: Sequence[BaseMessage],
    tools: Sequence[Any] = (),
    *,
    writer: TraceWriter,
    schema: type[BaseModel] | Mapping[str, Any] | None = None,
    tool_choice: str | None = None,
    retry_policy: RetryPolicy | None = None,
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> AIMessage:
    """The model's answer to ``messages``: text, calls to ``tools``, or JSON text that follows ``schema``.

    ``tools`` are LangChain tools, pydantic classes, functions or tool schemas; ``tool_choice`` is passed
    on where it is given (``any`` forces a call; not every server knows it). ``tools`` and ``schema``
    exclude each other: several servers stop calling tools once an answer schema is set. The answer is
    *not* validated against ``schema``: a grammar does not hold numeric bounds, so the caller validates
    either way.

    Raises :class:`ProviderError` when no usable answer came; :class:`ReplayDiverged` from a recording
    that does not fit.
    """
    assert not (tools and schema is not None), "ask with tools or with a schema, not both"
    secrets = secrets_of(model)
    writer.hide(*secrets)
    name = describe(model)
    request = request_data(messages, tools, schema, writer.secrets)
    digest = data_hash(request)
    number = writer.llm_calls
    writer.append("prompt", number=number, request_hash=digest, model=name, **request)
    tries = 1

    def on_retry(attempt: int, cause: str, wait_s: float) -> None:
        nonlocal tries
        tries = attempt + 1
        writer.append("note", topic="retry", text=f"prompt {number}: {cause}; trying again in {wait_s:.1f} s")

    started = clock()
    try:
        answer = call_with_retry(
            lambda: _invoke(model, messages, tools, schema, tool_choice),
            policy=retry_policy,
            provider=name,
            secrets=writer.secrets,
            sleep=sleep,
            clock=clock,
            on_retry=on_retry,
        )
    except ProviderError as err:
        writer.append("error", where="llm", number=number, message=str(err))
        raise
    writer.append(
        "llm_response",
        number=number,
        request_hash=digest,
        message=answer_data(answer),
        usage=_usage(answer),
        model=str(answer.response_metadata.get("model_name") or name),
        wall_s=round(clock() - started, 6),
        attempts=tries,
    )
    return answer


def describe(model: BaseChatModel) -> str:
    """The model as the user named it (``openai:gpt-x``), or its class and model name."""
    given = (model.metadata or {}).get("llm")
    if isinstance(given, str):
        return given
    own = getattr(model, "model_name", None) or getattr(model, "model", None)
    return f"{model._llm_type}:{own}" if own else model._llm_type


def secrets_of(model: BaseChatModel) -> tuple[str, ...]:
    """The keys that the model's client holds, so that they can be kept out of the trace and of messages."""
    values = (getattr(model, field, None) for field in type(model).model_fields)
    return tuple(value.get_secret_value() for value in values if isinstance(value, SecretStr))


def _invoke(
    model: BaseChatModel,
    messages: Sequence[BaseMessage],
    tools: Sequence[Any],
    schema: type[BaseModel] | Mapping[str, Any] | None,
    tool_choice: str | None,
) -> AIMessage:
    try:
        if schema is not None:
            plain = schema_data(schema)
            assert plain is not None
            structured = model.with_structured_output(plain, method="json_schema", include_raw=True)
            reply = structured.invoke(list(messages))
            answer = reply["raw"] if isinstance(reply, dict) else reply
        elif tools:
            options = {"tool_choice": tool_choice} if tool_choice else {}
            answer = model.bind_tools(list(tools), **options).invoke(list(messages))
        else:
            answer = model.invoke(list(messages))
        if isinstance(answer, AIMessage):
            answer = cleaned(answer)
    except ShardwiseError:
        raise
    except _UNREADABLE as err:
        raise UnreadableReply(_in_words(err)) from err
    except Exception as err:
        answer = _cut_off(err)
        if answer is None:
            raise
    if not isinstance(answer, AIMessage):
        raise UnreadableReply(f"expected an assistant message, got {type(answer).__name__}")
    if not (str(answer.text).strip() or answer.tool_calls or answer.invalid_tool_calls):
        raise UnreadableReply("the reply is empty: no text and no tool call")
    return answer


def _in_words(err: Exception) -> str:
    """What a client library's accident with a reply comes from."""
    if isinstance(err, JSONDecodeError):
        return f"it is not JSON ({err})"
    if isinstance(err, IndexError):
        return "it holds no choices"
    return f"{type(err).__name__}: {err}"


def _cut_off(err: Exception) -> AIMessage | None:
    """The part of an answer that OpenAI's client threw away because it ended at the length limit; None for
    other errors. The caller sees ``finish_reason`` = ``length`` and can ask for less."""
    completion = getattr(err, "completion", None)
    if type(err).__name__ != "LengthFinishReasonError" or completion is None:
        return None
    choice, usage = completion.choices[0], completion.usage
    counts = usage and {
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
    }
    metadata = {"finish_reason": "length", "model_name": completion.model}
    return AIMessage(choice.message.content or "", response_metadata=metadata, usage_metadata=counts or None)


def _usage(answer: AIMessage) -> dict[str, Any] | None:
    return dict(answer.usage_metadata) if answer.usage_metadata else None
