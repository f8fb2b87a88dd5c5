"""A real language model, asked over HTTP like any provider: constrained, recorded, replayed.

The model has 135 million parameters: this proves the plumbing, not the tuning.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest
from langchain_core.messages import HumanMessage
from pydantic import BaseModel, Field

from shardwise.agent.llm_call import ask
from shardwise.agent.providers import chat_model
from shardwise.agent.replay_model import ReplayModel
from shardwise.traces import TraceWriter, diff, read_trace, verify

pytestmark = pytest.mark.local_llm


class Proposal(BaseModel):
    """One candidate."""

    micro_batch_size: int = Field(ge=1, le=8)
    recompute: Literal["none", "selective", "full"]
    rationale: str = Field(max_length=80)


PROMPT = [
    HumanMessage(
        "Training uses 60 of 288 GiB with micro batch size 1. Propose one change: micro_batch_size 1 to 8, "
        "recompute none, selective or full, and a short rationale."
    ),
]


def test_a_real_model_answers_by_schema_and_its_trace_replays(local_llm_url: str, tmp_path: Path) -> None:
    model = chat_model("openai:smollm2", base_url=local_llm_url, temperature=0.0, max_tokens=120, seed=1)
    live = tmp_path / "live.jsonl"
    with TraceWriter(live) as writer:
        answer = ask(model, PROMPT, writer=writer, schema=Proposal)
    proposal = Proposal.model_validate_json(str(answer.text))
    assert 1 <= proposal.micro_batch_size <= 8
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] > 5

    assert verify(live).intact
    prompt, response = read_trace(live)
    assert (prompt.kind, response.kind) == ("prompt", "llm_response")
    assert json.loads(response.message["content"]) == proposal.model_dump()

    again = tmp_path / "again.jsonl"
    with TraceWriter(again) as writer:
        replayed = ask(ReplayModel.from_trace(live), PROMPT, writer=writer, schema=Proposal)
    assert replayed.text == answer.text
    assert diff(live, again) is None


def test_free_text_from_a_real_model(local_llm_url: str, tmp_path: Path) -> None:
    model = chat_model("llamacpp:smollm2", base_url=local_llm_url, temperature=0.0, max_tokens=16)
    with TraceWriter(tmp_path / "t.jsonl") as writer:
        answer = ask(model, [HumanMessage("Say hello.")], writer=writer)
    assert str(answer.text).strip()


def test_an_answer_cut_at_the_length_limit_is_handed_over_as_such(local_llm_url: str, tmp_path: Path) -> None:
    model = chat_model("openai:smollm2", base_url=local_llm_url, temperature=0.0, max_tokens=8)
    with TraceWriter(tmp_path / "t.jsonl") as writer:
        answer = ask(model, PROMPT, writer=writer, schema=Proposal)
    assert answer.response_metadata["finish_reason"] == "length"
    assert str(answer.text).startswith("{")
    assert read_trace(tmp_path / "t.jsonl")[1].message["finish_reason"] == "length"
