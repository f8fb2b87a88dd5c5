"""The LLM's part of the graph: tools, repair, fallback, JSON answers, replay, resumption."""

from __future__ import annotations

import json

import pytest
from agent_scripts import Interrupted, Scripted, calls, interrupted_at, proposing, small_request, text
from langchain_core.messages import AIMessage, ToolMessage

from shardwise.agent.replay import replay_run
from shardwise.agent.replay_model import ReplayModel
from shardwise.agent.retry import RetryPolicy
from shardwise.agent.session import tune
from shardwise.traces import read_trace, verify
from shardwise.traces.compare import diff

ONCE = RetryPolicy(attempts=1)
REQUEST = {"llm": "openai:scripted", "budget_calls": 20}


def events(out, kind):
    return [event for event in read_trace(out) if event.kind == kind]


def search(tmp_path, *script, name="run", **fields):
    model = Scripted(script=list(script))
    request = small_request(**{**REQUEST, **fields})
    return tune(request, out=tmp_path / name, llm=model, retry=ONCE), model, tmp_path / name


def test_the_llm_looks_with_tools_and_its_proposals_are_scored(tmp_path):
    look = calls(
        ("memory_check", {"changes": {"mbs": 8}}),
        ("legal_values", {"field": "pp"}),
        ("bottleneck", {"trial": "T0"}),
        ("compare_trials", {"first": "T0", "second": "t1"}),
        ("read_notes", {}),
    )
    result, model, out = search(tmp_path, look, proposing({"pp": 2, "vpp": 2, "mbs": 2, "tp": 2}))
    assert result.fallback is None
    told = events(out, "tool_result")
    assert [event.ok for event in told[:6]] == [True] * 6
    from_llm = [event for event in events(out, "projection") if event.origin == "llm"]
    assert from_llm
    # Every call of the first answer was answered, in order, before the LLM was asked again.
    replies = [message for message in model.asked[1] if isinstance(message, ToolMessage)]
    assert [message.tool_call_id for message in replies] == [call["id"] for call in look.tool_calls]
    # A stale LLM hands over to the heuristic proposer, which uses the rest of the budget.
    assert any(event.topic == "proposer" for event in events(out, "note"))
    assert any(event.origin == "heuristic" for event in events(out, "projection"))


def test_mistakes_cost_one_repair_and_are_then_dropped(tmp_path):
    wrong = calls(
        (
            "propose",
            {
                "candidates": [
                    {"changes": {"mbs": "4"}},
                    {"changes": {"overlap_grad_reduce": "false"}},
                    {"changes": {"tp": True}},
                    {"changes": {"warp_speed": 9}},
                    {"changes": {"gbs": 64}},
                    {"changes": [1, 2]},
                    "nonsense",
                    {"changes": {"pp": 3}},
                ]
            },
        )
    )
    _, model, out = search(tmp_path, wrong, wrong, budget_calls=12)
    repair = str(model.asked[1][-1].content)
    for said in (
        "candidate 1",
        "mbs='4'",
        "overlap_grad_reduce='false'",
        "warp_speed",
        "gbs is not searched",
    ):
        assert said in repair
    schema = [event for event in events(out, "rejection") if event.by == "schema"]
    assert len(schema) >= 14
    illegal = [event for event in events(out, "rejection") if event.by == "legality"]
    assert illegal
    assert illegal[0].rule


@pytest.mark.parametrize(
    "answer",
    [
        text({"candidates": [{"changes": {"mbs": 2}, "rationale": "r", "expected_gain_pct": 2}]}),
        text([{"changes": {"mbs": 2}}]),
        AIMessage(content='Sure!\n```json\n{"changes": {"mbs": 2}}\n```\nDone.'),
    ],
)
def test_plain_json_is_a_proposal_too(tmp_path, answer):
    _, _, out = search(tmp_path, answer, budget_calls=12)
    mine = [event for event in events(out, "candidate") if event.origin == "llm"]
    assert mine
    assert mine[0].changes == {"mbs": 2}


def test_prose_is_asked_again_with_a_schema(tmp_path):
    prose = AIMessage(content="I would try a larger micro batch.")
    answer = text({"candidates": [{"changes": {"mbs": 2}, "rationale": "r", "expected_gain_pct": 2}]})
    _, model, out = search(tmp_path, prose, prose, answer, prose, budget_calls=12)
    assert model.structured >= 1
    assert [event for event in events(out, "candidate") if event.origin == "llm"]


def test_unknown_tools_and_broken_arguments_are_answered(tmp_path):
    bad = AIMessage(
        content="",
        tool_calls=[
            {"name": "launch_missiles", "args": {}, "id": "x", "type": "tool_call"},
            {"name": "bottleneck", "args": {"trial": "T999"}, "id": "y", "type": "tool_call"},
            {"name": "bottleneck", "args": {"wrong": 1}, "id": "z", "type": "tool_call"},
        ],
        invalid_tool_calls=[
            {"name": "propose", "args": "{not json", "id": "w", "error": "bad", "type": "invalid_tool_call"}
        ],
    )
    _, model, _ = search(tmp_path, bad, proposing({"mbs": 2}), budget_calls=12)
    replies = [message for message in model.asked[1] if isinstance(message, ToolMessage)]
    assert [message.tool_call_id for message in replies] == ["x", "y", "z", "w"]
    assert all("error" in json.loads(str(message.content)) for message in replies)


def test_a_model_that_never_proposes_ends_its_turn(tmp_path):
    result, model, out = search(tmp_path, calls(("read_notes", {})), budget_calls=12)
    assert result.best is not None
    assert len(model.asked) < 40
    assert any("no proposal" in event.message for event in events(out, "rejection"))


def test_a_failing_provider_is_replaced_and_the_result_says_so(tmp_path):
    result, _, out = search(tmp_path, proposing({"mbs": 2}), ConnectionError("no route to host"))
    assert result.fallback
    fallback = events(out, "fallback")
    assert len(fallback) == 1
    assert fallback[0].reason == result.fallback
    assert "\n" not in result.fallback
    assert any(event.origin == "heuristic" for event in events(out, "projection"))
    assert replay_run(out).equal, "a run that fell back replays"


def test_fixed_fields_are_refused_to_the_llm(tmp_path):
    _, _, out = search(tmp_path, proposing({"tp": 2, "mbs": 2}), fixed={"tp": 1}, budget_calls=10)
    assert any("tp is fixed to 1" in event.message for event in events(out, "rejection"))
    assert all(event.recipe["tp"] == 1 for event in events(out, "projection"))


def test_a_recorded_run_replays_to_the_same_trace(tmp_path):
    result, _, out = search(tmp_path, calls(("read_notes", {})), proposing({"mbs": 2}, {"pp": 2}))
    assert replay_run(out).equal
    again = tune(small_request(llm=f"replay:{out / 'trace.jsonl'}", budget_calls=20), out=tmp_path / "again")
    assert again.best == result.best
    assert diff(out, tmp_path / "again") is None


def test_replay_of_another_request_names_the_first_different_prompt(tmp_path):
    from shardwise.agent.errors import ReplayDiverged

    _, _, out = search(tmp_path, proposing({"mbs": 2}), budget_calls=12)
    with pytest.raises(ReplayDiverged, match="prompt 0"):
        tune(
            small_request(llm="openai:x", budget_calls=12, gbs=64),
            out=tmp_path / "other",
            llm=ReplayModel.from_trace(out),
        )


def test_compact_mode_is_short_and_asks_for_json(tmp_path):
    answer = text({"candidates": [{"changes": {"mbs": 2}, "rationale": "r", "expected_gain_pct": 2}]})
    result, model, out = search(tmp_path, answer, prompt_mode="compact", budget_calls=12)
    again = small_request(llm=f"replay:{out / 'trace.jsonl'}", budget_calls=12)
    assert tune(again, out=tmp_path / "again").best == result.best, "a replay asks the way the recording did"
    prompt = events(out, "prompt")[0]
    assert len(prompt.messages) == 1
    assert len(prompt.messages[0]["content"]) < 1200
    assert prompt.answer_schema["properties"]["candidates"]["maxItems"] == 3
    assert model.structured
    assert [event for event in events(out, "candidate") if event.origin == "llm"]


@pytest.mark.parametrize("call", [11, 13])
def test_a_killed_run_with_an_llm_asks_no_question_twice(tmp_path, call):
    script = [
        proposing({"mbs": 2}, {"mbs": 2, "pp": 2}),
        proposing({"mbs": 4, "pp": 2}),
        proposing({"tp": 2}),
    ]
    whole, _, out = search(tmp_path, *script, name="whole")
    dying, _ = interrupted_at(call)
    first = Scripted(script=script)
    with pytest.raises(Interrupted):
        tune(small_request(**REQUEST), out=tmp_path / "cut", llm=first, retry=ONCE, projector=dying)
    asked = len(first.asked)
    for file in (tmp_path / "cut").glob("checkpoint.sqlite*"):
        file.unlink()
    second = Scripted(script=script[asked:] or [script[-1]])
    result = tune(resume=tmp_path / "cut", llm=second, retry=ONCE)
    assert result.best == whole.best
    assert diff(out, tmp_path / "cut") is None
    assert verify(tmp_path / "cut").intact


def test_the_token_budget_is_hard(tmp_path):
    answer = proposing({"mbs": 2})
    answer.usage_metadata = {"input_tokens": 900, "output_tokens": 100, "total_tokens": 1000}
    result, model, out = search(tmp_path, answer, budget_tokens=500)
    assert len(model.asked) == 1
    spent = [event for event in events(out, "budget") if event.exhausted and "tokens" in event.exhausted]
    assert len(spent) == 1
    assert result.fallback is None
    assert replay_run(out).equal
