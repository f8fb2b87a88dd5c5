"""The one retry layer around an LLM call: what is worth another try, how long to wait, when to give up.

1. :func:`classify` turns an exception into a :class:`Failure`: retryable or not, the cause in words, the
   provider's own ``Retry-After``. Authentication, bad requests, refusals and overlong prompts abort at once.
2. :func:`call_with_retry` waits exponentially with jitter (seeded, so that runs repeat), never less than the
   provider asked for, and never past ``total_timeout_s``, which bounds the calls themselves too.
3. Whatever ends the tries is one :class:`ProviderError` of one line, free of keys.

Clients are built with ``max_retries=0``: two layers would multiply their tries.
"""

from __future__ import annotations

import contextvars
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt

from shardwise.agent.errors import ProviderError
from shardwise.engine.errors import ShardwiseError
from shardwise.traces.redact import redact_text

T = TypeVar("T")

RETRIED_STATUS = frozenset({408, 409, 425, 429})
"""HTTP client-error codes that pass with time; every 5xx does, every other 4xx does not (RFC 9110, 6585)."""

_STATUS_WORDS = {
    400: "the request was refused as invalid",
    401: "the API key was not accepted",
    402: "payment is required",
    403: "the API key has no permission for this",
    404: "no such model or URL",
    408: "the provider timed out",
    409: "the provider reported a conflict",
    413: "the prompt is too large",
    422: "the request was refused as invalid",
    429: "rate limited",
}
_HOPELESS_CODES = frozenset({"insufficient_quota", "billing_hard_limit_reached", "context_length_exceeded"})
_TRANSPORT = frozenset({"TransportError", "TimeoutException", "APIConnectionError"})
_MAX_CAUSE = 200


class UnreadableReply(Exception):  # noqa: N818  # says what happened
    """The provider answered with success, but the body makes no sense: not JSON, no choices, nothing said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How hard to try. Times are seconds."""

    attempts: int = 4
    """Calls in all, the first included."""
    first_wait_s: float = 1.0
    """Wait before the second call; doubles each time."""
    max_wait_s: float = 30.0
    """Longest own wait (a provider's ``Retry-After`` may ask for more)."""
    jitter: float = 0.25
    """Random share added to a wait, so that many runs do not come back at once."""
    total_timeout_s: float = 240.0
    """Bound on everything: calls and waits together."""
    seed: int = 0
    """Seed of the jitter."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed call, understood."""

    retryable: bool
    cause: str
    """One line, no secrets."""
    retry_after_s: float | None = None
    """What the provider asked us to wait, seconds."""


def call_with_retry(
    fn: Callable[[], T],
    *,
    policy: RetryPolicy | None = None,
    provider: str = "",
    secrets: Iterable[str] = (),
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    on_retry: Callable[[int, str, float], None] | None = None,
) -> T:
    """``fn()``, tried again while its failure is worth it.

    ``on_retry(attempt, cause, wait_s)`` hears of each retry before the wait. Raises
    :class:`ProviderError` when the failure is final, tries are used up or time is; lets our own errors
    and bugs in ``fn`` through.
    """
    policy = policy or RetryPolicy()
    hidden = tuple(secrets)
    deadline = clock() + policy.total_timeout_s
    jitter = random.Random(policy.seed)
    tries = 0

    def once() -> T:
        nonlocal tries
        tries += 1
        return bounded(fn, max(deadline - clock(), 0.001))

    def pause(seconds: float) -> None:
        sleep(seconds)

    def wait_s(state: RetryCallState) -> float:
        failure = classify(_error(state), hidden)
        own = min(policy.first_wait_s * 2.0 ** (state.attempt_number - 1), policy.max_wait_s)
        return max(own * (1.0 + policy.jitter * jitter.random()), failure.retry_after_s or 0.0)

    def before_sleep(state: RetryCallState) -> None:
        failure = classify(_error(state), hidden)
        wait = state.next_action.sleep if state.next_action else 0.0
        if clock() + wait >= deadline:
            raise _give_up(
                failure.cause,
                f"waiting {wait:.1f} s more would pass the limit of {policy.total_timeout_s:g} s",
                provider,
                tries,
            ) from _error(state)
        if on_retry is not None:
            on_retry(state.attempt_number, failure.cause, wait)

    retrying = Retrying(
        stop=stop_after_attempt(policy.attempts),
        wait=wait_s,
        retry=retry_if_exception(lambda err: classify(err, hidden).retryable),
        sleep=pause,
        before_sleep=before_sleep,
        reraise=True,
    )
    try:
        return retrying(once)
    except ShardwiseError:
        raise
    except Exception as err:  # classified below; what is not a provider's failure goes on unchanged
        failure = classify(err, hidden)
        if not failure.cause:
            raise
        ending = f"gave up after {tries} tries" if tries > 1 else ""
        raise _give_up(failure.cause, ending, provider, tries) from err


def bounded(fn: Callable[[], T], seconds: float) -> T:
    """``fn()`` in a thread, abandoned with ``TimeoutError`` after ``seconds``.

    A client's own timeout counts the silence between two bytes, so that a server which trickles would hold
    us for ever. The thread is a daemon: an abandoned call cannot keep the process alive.
    """
    answer: list[T] = []
    failure: list[BaseException] = []
    context = contextvars.copy_context()

    def work() -> None:
        try:
            answer.append(context.run(fn))
        except BaseException as err:  # handed to the caller's thread, which raises it
            failure.append(err)

    thread = threading.Thread(target=work, name="llm-call", daemon=True)
    thread.start()
    thread.join(seconds)
    if failure:
        raise failure[0]
    if not answer:
        raise TimeoutError(f"no answer within {seconds:.1f} s")
    return answer[0]


def classify(err: BaseException, secrets: Iterable[str] = ()) -> Failure:
    """What ``err`` means. An empty cause says that it is no provider's failure but ours."""
    if isinstance(err, ShardwiseError) or not isinstance(err, Exception):
        return Failure(False, "")
    names = {cls.__name__ for cls in type(err).__mro__}
    detail = _detail(err, secrets)
    if "ContextOverflowError" in names or _code(err) == "context_length_exceeded":
        return Failure(False, f"the prompt is longer than the model's context{detail}")
    if "ModelRefusalError" in names or "ContentFilterFinishReasonError" in names:
        return Failure(False, f"the model refused to answer{detail}")
    if "LengthFinishReasonError" in names:
        return Failure(False, f"the reply was cut off at the length limit{detail}")
    if isinstance(err, UnreadableReply) or "APIResponseValidationError" in names:
        return Failure(True, f"the reply is unreadable{detail}")
    status = _status(err)
    if status is not None and status >= 400:
        retryable = (status in RETRIED_STATUS or status >= 500) and _code(err) not in _HOPELESS_CODES
        words = _STATUS_WORDS.get(status, "the server failed" if status >= 500 else "the request was refused")
        return Failure(
            retryable, f"HTTP {status}, {words}{detail}", retry_after_s(err) if retryable else None
        )
    if isinstance(err, TimeoutError) or "APITimeoutError" in names or "TimeoutException" in names:
        return Failure(True, f"no answer in time{detail}")
    if isinstance(err, ConnectionError) or names & _TRANSPORT or "ModelConnectionError" in names:
        return Failure(True, f"cannot reach the provider{_root_detail(err, secrets)}")
    if "ModelError" in names:
        return Failure(bool(getattr(err, "is_retryable", False)), f"the provider failed{detail}")
    return Failure(False, "")


def retry_after_s(err: BaseException, now: datetime | None = None) -> float | None:
    """Seconds that the provider asked us to wait: ``retry-after-ms``, or ``Retry-After`` in seconds or
    as a date (RFC 9110, section 10.2.3); None when it did not ask or the value makes no sense.
    """
    responses = (getattr(link, "response", None) for link in _chain(err))
    headers: Any = next(
        (found for r in responses if (found := getattr(r, "headers", None)) is not None), None
    )
    if headers is None:
        return None
    millis, after = headers.get("retry-after-ms"), headers.get("retry-after")
    if millis is not None and _number(millis) is not None:
        return max(float(millis) / 1000.0, 0.0)
    if after is None:
        return None
    seconds = _number(after)
    if seconds is not None:
        return max(seconds, 0.0)
    try:
        when = parsedate_to_datetime(after)
    except (TypeError, ValueError):
        return None
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    return max((when - (now or datetime.now(UTC))).total_seconds(), 0.0)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value == value and abs(value) != float("inf") else None


def _chain(err: BaseException) -> Iterator[BaseException]:
    """``err`` and what it was raised from: wrappers of some libraries keep status and headers inside."""
    link: BaseException | None = err
    while link is not None:
        yield link
        link = link.__cause__


def _status(err: BaseException) -> int | None:
    for link in _chain(err):
        for source in (link, getattr(link, "response", None)):
            for name in ("status_code", "code"):
                value = getattr(source, name, None)
                if isinstance(value, int) and not isinstance(value, bool):
                    return value
    return None


def _code(err: BaseException) -> str | None:
    code = getattr(err, "code", None)
    return code if isinstance(code, str) else None


def _detail(err: BaseException, secrets: Iterable[str]) -> str:
    body = getattr(err, "body", None)
    inner = body.get("error", body) if isinstance(body, dict) else None
    said = inner.get("message") if isinstance(inner, dict) else None
    text = said if isinstance(said, str) and said else str(err)
    line = " ".join(redact_text(text, secrets).split())
    line = line if len(line) <= _MAX_CAUSE else line[: _MAX_CAUSE - 3] + "..."
    return f": {line}" if line else ""


def _root_detail(err: BaseException, secrets: Iterable[str]) -> str:
    """The innermost cause (``[Errno 111] Connection refused``): the wrappers only say "Connection error."."""
    root: BaseException = err
    while (inner := root.__cause__ or root.__context__) is not None:
        root = inner
    return _detail(root, secrets)


def _error(state: RetryCallState) -> BaseException:
    assert state.outcome is not None, "tenacity asks about finished tries only"
    err = state.outcome.exception()
    assert err is not None, "tenacity asks about failed tries only"
    return err


def _give_up(cause: str, ending: str, provider: str, tries: int) -> ProviderError:
    head = f"{provider}: " if provider else ""
    tail = f" ({ending})" if ending else ""
    return ProviderError(f"{head}{cause}{tail}", provider=provider, attempts=tries)
