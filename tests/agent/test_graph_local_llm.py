"""A whole search with a real language model behind a loopback server, and with servers that fail."""

from __future__ import annotations

import pytest
from agent_scripts import small_request
from servers import (
    DEEP_TOOL_ARGS,
    GARBAGE,
    HANG_UP,
    NAN_TOOL_ARGS,
    TOOL_ARGS_NO_OBJECT,
    WRONG_TOOL,
    Reply,
    error,
)

from shardwise.agent.replay import replay_run
from shardwise.agent.retry import RetryPolicy
from shardwise.agent.session import tune
from shardwise.traces import read_trace, verify


@pytest.mark.local_llm
def test_a_real_model_takes_part_in_a_search_that_replays(local_llm_url, tmp_path):
    request = small_request(llm="openai:smollm2", base_url=local_llm_url, budget_calls=12)
    result = tune(request, out=tmp_path / "run")
    events = read_trace(tmp_path / "run")
    assert result.fallback is None
    assert result.best is not None
    assert any(event.kind == "llm_response" for event in events)
    assert any(event.kind == "candidate" and event.origin == "llm" for event in events)
    assert verify(tmp_path / "run").intact
    outcome = replay_run(tmp_path / "run")
    assert outcome.equal, outcome.first_difference


@pytest.mark.parametrize(
    ("reply", "mode"),
    [(error(500, "down"), "full"), (GARBAGE, "compact"), (HANG_UP, "full"), (error(401, "no"), "compact")],
)
def test_a_broken_server_costs_the_llm_not_the_search(misbehaving_server, tmp_path, reply, mode):
    misbehaving_server.script(reply)
    result = ask_server(misbehaving_server, tmp_path, mode)
    assert result.fallback
    assert "\n" not in result.fallback
    assert result.best is not None
    assert replay_run(tmp_path / "run").equal


@pytest.mark.parametrize("reply", [WRONG_TOOL, NAN_TOOL_ARGS, DEEP_TOOL_ARGS, TOOL_ARGS_NO_OBJECT, Reply()])
def test_a_babbling_server_is_answered_and_given_up(misbehaving_server, tmp_path, reply):
    misbehaving_server.script(reply)
    result = ask_server(misbehaving_server, tmp_path, "full")
    assert result.best is not None
    assert verify(tmp_path / "run").intact
    outcome = replay_run(tmp_path / "run")
    assert outcome.equal, outcome.first_difference


def ask_server(server, tmp_path, mode):
    request = small_request(llm="openai:any", base_url=server.url, budget_calls=10, prompt_mode=mode)
    return tune(request, out=tmp_path / "run", retry=RetryPolicy(attempts=2, first_wait_s=0.01))
