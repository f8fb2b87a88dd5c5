"""Asking, recording, replaying: the same questions get the same answers, another question is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import servers
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from pydantic import BaseModel, Field
from servers import MisbehavingServer, completion, error

from shardwise.agent.errors import ProviderError, ReplayDiverged
from shardwise.agent.llm_call import ask
from shardwise.agent.llm_messages import answer_data, answer_from, cleaned, message_data
from shardwise.agent.providers import chat_model
from shardwise.agent.replay_model import ReplayModel, exchanges, request_hash
from shardwise.agent.retry import RetryPolicy
from shardwise.traces import TraceWriter, diff, read_trace, verify
from shardwise.traces.canonical import jsonable

QUICK = RetryPolicy(attempts=2, first_wait_s=0.0, jitter=0.0)


@tool
def memory_check(tp: int) -> str:
    """Whether a recipe fits."""
    return f"tp={tp} fits"


class Propose(BaseModel):
    """Propose one change."""

    mbs: int = Field(ge=1)


def converse(
    model: Any, path: Path, *, question: str = "Make it faster.\nKeep it legal.", tools: Any = None
) -> str:
    """A small agent: a tool call, its result, an answer by schema."""
    messages: list[Any] = [SystemMessage("You tune."), HumanMessage(question)]
    with TraceWriter(path, environ={}) as writer:
        first = ask(model, messages, tools or [memory_check], writer=writer, retry_policy=QUICK)
        messages.append(first)
        messages += [
            ToolMessage(memory_check.invoke(call["args"]), tool_call_id=call["id"])
            for call in first.tool_calls
        ]
        answer = ask(model, messages, writer=writer, schema=Propose, retry_policy=QUICK)
        try:
            ask(model, [HumanMessage("more?")], writer=writer, retry_policy=QUICK)
        except ProviderError as err:
            writer.append("fallback", provider=err.provider, reason=str(err))
    return str(answer.text)


@pytest.fixture
def recorded(misbehaving_server: MisbehavingServer, tmp_path: Path) -> Path:
    misbehaving_server.script(
        servers.EMPTY_CHOICES,
        servers.Reply(completion(None, [{"name": "memory_check", "arguments": '{"tp": 2}'}])),
        servers.Reply(completion('{"mbs": 2}')),
        error(500, "down"),
    )
    live = tmp_path / "live.jsonl"
    model = chat_model("openai:tiny", base_url=misbehaving_server.url, environ={})
    assert converse(model, live) == '{"mbs": 2}'
    return live


def test_a_replay_gives_the_same_answers_and_failures(recorded: Path, tmp_path: Path) -> None:
    model = ReplayModel.from_trace(recorded)
    assert converse(model, tmp_path / "again.jsonl") == '{"mbs": 2}'
    assert model.answered == 3
    assert diff(recorded, tmp_path / "again.jsonl") is None
    assert verify(tmp_path / "again.jsonl").intact
    kinds = [event.kind for event in read_trace(tmp_path / "again.jsonl")]
    assert kinds == ["prompt", "llm_response", "prompt", "llm_response", "prompt", "error", "fallback"]
    assert (
        converse(chat_model(f"replay:{tmp_path / 'again.jsonl'}"), tmp_path / "third.jsonl") == '{"mbs": 2}'
    )
    assert diff(recorded, tmp_path / "third.jsonl") is None


def test_another_question_is_named_by_its_first_line(recorded: Path, tmp_path: Path) -> None:
    with pytest.raises(ReplayDiverged) as caught:
        converse(ReplayModel.from_trace(recorded), tmp_path / "x", question="Make it faster.\nKeep it cheap.")
    assert caught.value.prompt == 0
    assert str(caught.value) == (
        "prompt 0, message 1 (user), line 2: was 'Keep it legal.', is 'Keep it cheap.'"
    )


@pytest.mark.parametrize(
    ("messages", "tools", "says"),
    [
        ([SystemMessage("You tune.")], [memory_check], "message 1 (user): in the recording, missing now"),
        ([HumanMessage("You tune.")], [memory_check], "message 0: was from system, is from user"),
        (None, [], "tool 0: was memory_check"),
        (None, [memory_check, Propose], "tool 1: was absent, is Propose"),
        ("longer", [memory_check], "message 2 (user): new, not in the recording: 'and?'"),
    ],
)
def test_any_other_difference_is_named(
    recorded: Path, messages: Any, tools: Any, says: str, tmp_path: Path
) -> None:
    asked = [SystemMessage("You tune."), HumanMessage("Make it faster.\nKeep it legal.")]
    if messages == "longer":
        asked.append(HumanMessage("and?"))
    elif messages is not None:
        asked = messages
    with TraceWriter(tmp_path / "x", environ={}) as writer, pytest.raises(ReplayDiverged) as caught:
        ask(ReplayModel.from_trace(recorded), asked, tools, writer=writer)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_one_question_too_many(recorded: Path, tmp_path: Path) -> None:
    model = ReplayModel.from_trace(recorded, start=3)
    with (
        TraceWriter(tmp_path / "x", environ={}) as writer,
        pytest.raises(ReplayDiverged, match="holds 3 answers"),
    ):
        ask(model, [HumanMessage("more?")], writer=writer)
    with pytest.raises(ReplayDiverged, match="holds 3 answers"):
        model.invoke("x")


def test_a_resumed_replay_starts_where_it_stopped(recorded: Path) -> None:
    model = ReplayModel.from_trace(recorded, start=2)
    with pytest.raises(ProviderError, match="HTTP 500"):
        model.invoke([HumanMessage("more?")])


def test_an_edited_recording_is_noticed(recorded: Path, tmp_path: Path) -> None:
    text = recorded.read_text().replace("faster.", "slower.", 1)
    (tmp_path / "edited").write_text(text)
    with pytest.raises(ReplayDiverged, match=r"was 'Make it slower\.', is 'Make it faster\.'"):
        converse(ReplayModel.from_trace(tmp_path / "edited"), tmp_path / "x")
    with pytest.raises(ReplayDiverged, match="does not fit its own text"):
        converse(
            ReplayModel.from_trace(tmp_path / "edited"),
            tmp_path / "y",
            question="Make it slower.\nKeep it legal.",
        )


def test_a_question_cut_off_by_a_kill_is_asked_again_under_its_number(
    misbehaving_server: MisbehavingServer, tmp_path: Path
) -> None:
    model = chat_model("openai:tiny", base_url=misbehaving_server.url, environ={})
    question = [HumanMessage("hi")]
    with TraceWriter(tmp_path / "whole", environ={}) as writer:
        ask(model, question, writer=writer)
        ask(model, question, writer=writer)
    with TraceWriter(tmp_path / "killed", environ={}) as writer:
        ask(model, question, writer=writer)
        asked = read_trace(tmp_path / "killed")[0]
        writer.append(
            "prompt", number=1, request_hash=asked.request_hash, messages=asked.messages, model="openai:tiny"
        )
    with TraceWriter(tmp_path / "killed", environ={}) as writer:
        assert writer.llm_calls == 1
        ask(model, question, writer=writer)
    assert [e.number for e in read_trace(tmp_path / "killed")] == [0, 0, 1, 1, 1]
    assert len(exchanges(read_trace(tmp_path / "killed"))) == 2
    assert diff(tmp_path / "whole", tmp_path / "killed") is None


def test_structured_output_of_a_replay(misbehaving_server: MisbehavingServer, tmp_path: Path) -> None:
    misbehaving_server.script(servers.Reply(completion('{"mbs": 2}')), servers.Reply(completion("no json")))
    live = chat_model("openai:tiny", base_url=misbehaving_server.url, environ={})
    question = [HumanMessage("propose")]
    with TraceWriter(tmp_path / "t", environ={}) as writer:
        ask(live, question, writer=writer, schema=Propose)
        ask(live, question, writer=writer, schema=Propose, retry_policy=QUICK)
    as_model = ReplayModel.from_trace(tmp_path / "t").with_structured_output(Propose)
    assert as_model.invoke(question) == Propose(mbs=2)
    raw = ReplayModel.from_trace(tmp_path / "t").with_structured_output(Propose, include_raw=True)
    first, second = raw.invoke(question), raw.invoke(question)
    assert (first["parsed"], first["parsing_error"]) == (Propose(mbs=2), None)
    assert second["parsed"] is None
    assert isinstance(second["parsing_error"], ValueError)
    assert second["raw"].text == "no json"


def test_function_calling_output_of_a_replay(misbehaving_server: MisbehavingServer, tmp_path: Path) -> None:
    misbehaving_server.script(
        servers.Reply(completion(None, [{"name": "Propose", "arguments": '{"mbs": 4}'}]))
    )
    live = chat_model("openai:tiny", base_url=misbehaving_server.url, environ={})
    with TraceWriter(tmp_path / "t", environ={}) as writer:
        ask(live, [HumanMessage("propose")], [Propose], writer=writer, tool_choice="any")
    assert misbehaving_server.requests[-1]["tool_choice"] == "required"
    model = ReplayModel.from_trace(tmp_path / "t").with_structured_output(Propose, method="function_calling")
    assert model.invoke([HumanMessage("propose")]) == Propose(mbs=4)


def test_tools_and_schema_exclude_each_other(recorded: Path, tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "x", environ={}) as writer, pytest.raises(AssertionError):
        ask(ReplayModel.from_trace(recorded), [], [memory_check], writer=writer, schema=Propose)


def test_the_hash_is_blind_to_ids_and_sees_everything_else() -> None:
    def talk(call: str, result_of: str, text: str = "fits", args: Any = None) -> list[Any]:
        calls = [{"name": "memory_check", "args": args or {"tp": 2}, "id": call, "type": "tool_call"}]
        return [
            HumanMessage("go"),
            AIMessage("", tool_calls=calls),
            ToolMessage(text, tool_call_id=result_of),
        ]

    base = request_hash(talk("a", "a"), [memory_check])
    assert base == request_hash(talk("z9", "z9"), [memory_check])
    others = [
        request_hash(talk("a", "b"), [memory_check]),
        request_hash(talk("a", "a", text="too big"), [memory_check]),
        request_hash(talk("a", "a", args={"tp": 4}), [memory_check]),
        request_hash(talk("a", "a"), []),
        request_hash(talk("a", "a"), [], Propose),
        request_hash(talk("a", "a")[:2], [memory_check]),
    ]
    assert len({base, *others}) == 7


def test_the_hash_does_not_depend_on_secrets_in_the_text() -> None:
    with_key = request_hash([HumanMessage("key sk-abcdefgh12345 and my-own")], secrets=["my-own"])
    assert with_key == request_hash([HumanMessage("key [redacted] and [redacted]")])


json_args = st.dictionaries(
    st.text(), st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.integers())
)


@given(st.text(min_size=1), st.lists(json_args, max_size=2))
def test_answers_survive_the_trace(content: str, all_args: list[dict[str, Any]]) -> None:
    calls = [
        {"name": "t", "args": args, "id": f"c{i}", "type": "tool_call"} for i, args in enumerate(all_args)
    ]
    usage = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
    message = AIMessage(
        content, tool_calls=calls, usage_metadata=usage, response_metadata={"finish_reason": "stop"}
    )
    back = answer_from(answer_data(message), usage)
    assert (back.text, back.tool_calls, back.usage_metadata) == (message.text, message.tool_calls, usage)
    assert answer_data(back) == answer_data(message)


def test_blocks_of_text_and_reasoning_are_told_apart() -> None:
    message = AIMessage([{"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": "yes"}])
    assert message_data(message) == {"role": "assistant", "content": "yes"}
    assert answer_data(message)["reasoning"] == "hm"


def test_an_answer_is_used_as_the_trace_holds_it() -> None:
    args = {"b": float("nan"), "a": {"z": "x\x1b[2J", "y": "\ud800"}}
    answer = cleaned(
        AIMessage(content="half \ud800\x07\n", tool_calls=[{"name": "propose", "args": args, "id": "1"}])
    )
    assert answer.content == "half \ufffd\ufffd\n"
    assert list(answer.tool_calls[0]["args"]) == ["a", "b"]
    assert answer.tool_calls[0]["args"] == {"a": {"y": "\ufffd", "z": "x\ufffd[2J"}, "b": "nan"}
    assert answer_from(jsonable(answer_data(answer))).tool_calls == answer.tool_calls
