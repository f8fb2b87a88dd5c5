"""Retries against a real server that misbehaves: what is tried again, how long is waited, how it ends."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import servers
from langchain_core.messages import HumanMessage
from servers import MisbehavingServer, Reply, error

from shardwise.agent.errors import BudgetExceeded, ProposalInvalid, ProviderError, ReplayDiverged
from shardwise.agent.llm_call import ask
from shardwise.agent.providers import chat_model
from shardwise.agent.retry import RetryPolicy, bounded, call_with_retry, classify, retry_after_s
from shardwise.engine.errors import ShardwiseError
from shardwise.traces import TraceWriter, read_trace

KEY = "sk-test-0123456789abcdef"


class Waits(list[float]):
    """A sleep that only notes."""

    def __call__(self, seconds: float) -> None:
        self.append(seconds)


def asked(
    server: MisbehavingServer, path: Path, *, timeout_s: float = 5.0, **policy: Any
) -> tuple[Any, Waits]:
    waits = Waits()
    model = chat_model("openai:tiny", base_url=server.url, api_key=KEY, timeout_s=timeout_s)
    with TraceWriter(path / "t.jsonl", environ={}) as writer:
        answer = ask(
            model, [HumanMessage("hi")], writer=writer, retry_policy=RetryPolicy(**policy), sleep=waits
        )
    return answer, waits


def failed(server: MisbehavingServer, path: Path, **options: Any) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        asked(server, path, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 400
    assert KEY not in message
    assert message.startswith("openai:tiny: ")
    trace = (path / "t.jsonl").read_text()
    assert KEY not in trace
    last = read_trace(path / "t.jsonl")[-1]
    assert (last.kind, last.where, last.number, last.message) == ("error", "llm", 0, message)
    return caught.value


def test_a_good_answer_needs_one_call(misbehaving_server: MisbehavingServer, tmp_path: Path) -> None:
    answer, waits = asked(misbehaving_server, tmp_path)
    assert (answer.text, waits) == ("hello", [])
    assert misbehaving_server.keys == [f"Bearer {KEY}"]
    prompt, response = read_trace(tmp_path / "t.jsonl")
    assert (prompt.number, prompt.model, response.usage["total_tokens"]) == (0, "openai:tiny", 18)


PASSING = {
    "500": error(500, "oops"),
    "502": Reply(b"<html>bad gateway</html>", 502, content_type="text/html"),
    "503": error(503, "busy"),
    "529": error(529, "overloaded"),
    "408": error(408, "slow"),
    "409": error(409, "conflict"),
    "429": error(429, "slow down"),
    "garbage": servers.GARBAGE,
    "html": servers.HTML,
    "empty body": servers.EMPTY_BODY,
    "empty choices": servers.EMPTY_CHOICES,
    "null choices": servers.NULL_CHOICES,
    "no choices": servers.NO_CHOICES,
    "no message": servers.CHOICE_WITHOUT_MESSAGE,
    "empty message": servers.EMPTY_MESSAGE,
    "error with 200": servers.ERROR_WITH_200,
    "truncated": servers.TRUNCATED,
    "cut connection": servers.CUT_CONNECTION,
    "hang up": servers.HANG_UP,
    "list": servers.JSON_LIST,
    "deep arguments": servers.DEEP_TOOL_ARGS,
}


@pytest.mark.parametrize("reply", PASSING.values(), ids=PASSING.keys())
def test_what_passes_is_tried_again(
    misbehaving_server: MisbehavingServer, tmp_path: Path, reply: Reply
) -> None:
    misbehaving_server.script(reply, reply, servers.OK)
    answer, waits = asked(misbehaving_server, tmp_path, first_wait_s=1.0, jitter=0.25)
    assert answer.text == "hello"
    assert len(misbehaving_server.requests) == 3
    assert 1.0 <= waits[0] <= 1.25
    assert 2.0 <= waits[1] <= 2.5
    kinds = [(event.kind, getattr(event, "topic", "")) for event in read_trace(tmp_path / "t.jsonl")]
    assert kinds == [("prompt", ""), ("note", "retry"), ("note", "retry"), ("llm_response", "")]
    assert read_trace(tmp_path / "t.jsonl")[-1].attempts == 3


@pytest.mark.parametrize("reply", PASSING.values(), ids=PASSING.keys())
def test_what_does_not_pass_ends_in_one_line(
    misbehaving_server: MisbehavingServer, tmp_path: Path, reply: Reply
) -> None:
    misbehaving_server.script(reply)
    err = failed(misbehaving_server, tmp_path, attempts=3)
    assert (err.attempts, err.provider) == (3, "openai:tiny")
    assert "gave up after 3 tries" in str(err)
    assert len(misbehaving_server.requests) == 3


HOPELESS = {
    "400": (error(400, "bad parameter: temperature"), "HTTP 400, the request was refused as invalid"),
    "401": (error(401, f"Incorrect API key provided: {KEY}"), "HTTP 401, the API key was not accepted"),
    "403": (error(403, "no"), "HTTP 403, the API key has no permission"),
    "404": (error(404, "model not found"), "HTTP 404, no such model or URL"),
    "422": (error(422, "unprocessable"), "HTTP 422"),
    "context": (
        error(400, "maximum context length is 4096 tokens", code="context_length_exceeded"),
        "the prompt is longer than the model's context",
    ),
    "quota": (error(429, "You exceeded your current quota", code="insufficient_quota"), "HTTP 429"),
}


@pytest.mark.parametrize(("reply", "says"), HOPELESS.values(), ids=HOPELESS.keys())
def test_what_is_hopeless_aborts_at_once(
    misbehaving_server: MisbehavingServer, tmp_path: Path, reply: Reply, says: str
) -> None:
    misbehaving_server.script(reply)
    err = failed(misbehaving_server, tmp_path)
    assert says in str(err)
    assert len(misbehaving_server.requests) == err.attempts == 1


def test_nobody_listens(tmp_path: Path) -> None:
    gone = MisbehavingServer()
    gone.close()
    err = failed(gone, tmp_path, attempts=2)
    assert "cannot reach the provider" in str(err)
    assert "refused" in str(err)


@pytest.mark.parametrize(
    ("headers", "wait"),
    [({"Retry_After": "7"}, 7.0), ({"retry_after_ms": "4500"}, 4.5), ({"Retry_After": "0"}, 0.0)],
)
def test_retry_after_is_honoured(
    misbehaving_server: MisbehavingServer, tmp_path: Path, headers: dict[str, str], wait: float
) -> None:
    misbehaving_server.script(error(429, "slow down", **headers), servers.OK)
    answer, waits = asked(misbehaving_server, tmp_path, first_wait_s=0.01)
    assert answer.text == "hello"
    assert waits == pytest.approx([max(wait, 0.01)], rel=0.3)
    assert waits[0] >= wait


def test_a_retry_after_past_the_limit_ends_it_at_once(
    misbehaving_server: MisbehavingServer, tmp_path: Path
) -> None:
    misbehaving_server.script(error(429, "come back tomorrow", Retry_After="86400"))
    err = failed(misbehaving_server, tmp_path, total_timeout_s=60.0)
    assert "waiting 86400.0 s more would pass the limit of 60 s" in str(err)
    assert len(misbehaving_server.requests) == 1


@pytest.mark.parametrize(
    ("reply", "timeout_s"),
    [(Reply(stall_s=20.0), 0.2), (Reply(stall_s=20.0), 30.0), (Reply(trickle_s=0.1), 30.0)],
    ids=["client timeout", "total timeout", "trickle"],
)
def test_silence_is_bounded(
    misbehaving_server: MisbehavingServer, tmp_path: Path, reply: Reply, timeout_s: float
) -> None:
    misbehaving_server.script(reply)
    began = time.monotonic()
    err = failed(
        misbehaving_server, tmp_path, timeout_s=timeout_s, attempts=2, first_wait_s=0.0, total_timeout_s=0.8
    )
    assert time.monotonic() - began < 5.0
    assert "no answer in time" in str(err)


def test_wrong_tools_are_the_callers_business(misbehaving_server: MisbehavingServer, tmp_path: Path) -> None:
    for reply, calls, invalid in (
        (servers.WRONG_TOOL, ["launch_missiles"], []),
        (servers.BAD_TOOL_JSON, [], ["propose"]),
    ):
        misbehaving_server.script(reply)
        answer, _ = asked(misbehaving_server, tmp_path)
        assert [call["name"] for call in answer.tool_calls] == calls
        assert [call["name"] for call in answer.invalid_tool_calls] == invalid


def test_numbers_that_json_lacks_become_words(misbehaving_server: MisbehavingServer, tmp_path: Path) -> None:
    misbehaving_server.script(servers.NAN_TOOL_ARGS)
    answer, _ = asked(misbehaving_server, tmp_path)
    assert answer.tool_calls[0]["args"] == {"tp": "nan", "pp": "-inf"}
    assert read_trace(tmp_path / "t.jsonl")[-1].message["tool_calls"][0]["args"] == {
        "tp": "nan",
        "pp": "-inf",
    }


def test_waits_repeat_from_run_to_run_and_are_capped() -> None:
    def run(seed: int) -> Waits:
        waits = Waits()
        with pytest.raises(ProviderError):
            call_with_retry(
                lambda: (_ for _ in ()).throw(ConnectionError("down")),
                policy=RetryPolicy(attempts=8, max_wait_s=4.0, seed=seed, total_timeout_s=1e6),
                sleep=waits,
                clock=lambda: 0.0,
            )
        return waits

    assert run(1) == run(1) != run(2)
    assert len(run(1)) == 7
    assert max(run(1)) <= 4.0 * 1.25


def test_our_own_errors_and_bugs_go_through_untouched() -> None:
    for err in (
        ReplayDiverged("x", prompt=0),
        ProposalInvalid("x"),
        BudgetExceeded("calls", used=2, allowed=1),
        ZeroDivisionError(),
        AssertionError("bug"),
    ):
        calls: list[int] = []

        def fail(err: Exception = err, calls: list[int] = calls) -> None:
            calls.append(1)
            raise err

        with pytest.raises(type(err)) as caught:
            call_with_retry(fail, sleep=Waits())
        assert caught.value is err
        assert calls == [1]
    assert str(BudgetExceeded("calls", used=2, allowed=1)) == "budget calls is used up: 2 of 1"
    assert issubclass(ProviderError, ShardwiseError)


def test_a_bounded_call_keeps_answer_error_and_context() -> None:
    assert bounded(lambda: 3, 5.0) == 3
    assert bounded(lambda: None, 5.0) is None
    with pytest.raises(KeyError):
        bounded(lambda: {}["x"], 5.0)
    gate = threading.Event()
    with pytest.raises(TimeoutError, match=r"within 0\.1 s"):
        bounded(gate.wait, 0.1)
    gate.set()


def test_retry_after_spellings() -> None:
    def err(**headers: str) -> Any:
        plain = {name.replace("_", "-"): value for name, value in headers.items()}
        return SimpleNamespace(response=SimpleNamespace(headers=plain))

    now = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
    assert retry_after_s(err(retry_after="2.5")) == 2.5
    assert retry_after_s(err(retry_after="-3")) == 0.0
    assert retry_after_s(err(retry_after="Thu, 01 Jan 2026 12:00:30 GMT"), now) == 30.0
    assert retry_after_s(err(retry_after="Thu, 01 Jan 2026 11:00:00 GMT"), now) == 0.0
    for junk in ("soon", "nan", "inf", ""):
        assert retry_after_s(err(retry_after=junk)) is None
    assert retry_after_s(ValueError("no response")) is None


def test_other_libraries_errors_are_understood() -> None:
    class TransportError(Exception):
        """As httpx names it."""

    class APIError(Exception):
        """As google-genai's, whose code is the HTTP status."""

        code = 503

    def wrapped(status: int) -> Exception:
        class ModelError(Exception):
            """As langchain's, raised from the provider's own, which knows the status."""

        inner = APIError("inner")
        inner.code = status
        inner.response = SimpleNamespace(headers={"retry-after": "3"})  # type: ignore[attr-defined]
        outer = ModelError("Error calling model")
        outer.__cause__ = inner
        return outer

    assert classify(wrapped(401)).cause == "HTTP 401, the API key was not accepted: Error calling model"
    assert not classify(wrapped(401)).retryable
    assert classify(wrapped(429)).retry_after_s == 3.0
    assert classify(TransportError("reset")).retryable
    assert classify(APIError("unavailable")).retryable
    assert classify(APIError("unavailable")).cause == "HTTP 503, the server failed: unavailable"
    assert not classify(KeyboardInterrupt()).retryable
