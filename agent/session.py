"""One search from request to result, in a run folder that survives a kill at any moment.

- Every score is in ``trials.jsonl`` before it is used, every event in ``trace.jsonl``, every superstep in
  ``checkpoint.sqlite`` (durability ``sync``).
- Resuming continues from the checkpoint; the interrupted node runs again, finds its scores known and its
  events told. Without a usable checkpoint the whole graph runs again the same way: free, same outcome.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from shardwise import __version__
from shardwise.agent.baseline import choose_baseline
from shardwise.agent.budget import Budget
from shardwise.agent.context import Context
from shardwise.agent.journal import Journal
from shardwise.agent.oracle import Oracle, Projector
from shardwise.agent.providers import check_llm, parse_llm_spec
from shardwise.agent.request import TuneRequest
from shardwise.agent.result import TuneResult, result_of
from shardwise.agent.runfolder import RunFolder, write_json
from shardwise.agent.searchspace import SearchSpace
from shardwise.agent.state import TuneState, started
from shardwise.engine.errors import ConfigError
from shardwise.engine.projection import ENGINE_VERSION, project
from shardwise.traces import Event, read_trace
from shardwise.traces.canonical import jsonable
from shardwise.traces.events import RequestEvent
from shardwise.traces.redact import redact

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

    from shardwise.agent.retry import RetryPolicy

THREAD = "search"
"""The one thread of a run's checkpoint database."""
_LOOPBACK = ("127.0.0.1", "localhost", "::1", "0.0.0.0")


def tune(
    request: TuneRequest | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: str | os.PathLike[str] | None = None,
    on_event: Callable[[Event], None] | None = None,
    *,
    text: str | None = None,
    llm: BaseChatModel | None = None,
    retry: RetryPolicy | None = None,
    projector: Projector = project,
    clock: Callable[[], float] = time.monotonic,
) -> TuneResult:
    """Run a search, or continue one.

    ``out``: the new run folder (default: a fresh one below ``runs/``). ``resume``: the folder of an
    interrupted run; ``request`` is then read from it, and a finished run just gives its result. ``on_event``
    hears of every event as it is written. ``llm``: a chat model to use instead of the one that
    ``request.llm`` names. ``projector`` and ``clock`` (monotonic seconds) are for tests and embedding.

    Raises :class:`ConfigError` for what the user must change, :class:`ReplayDiverged` when a ``replay:``
    trace does not belong to the request.
    """
    if resume is not None:
        folder, asked, text = RunFolder.open(resume)
        if request is not None and request != asked:
            raise ConfigError(f"resume = {str(resume)!r}: that run was asked something else", field="resume")
        done = folder.read_result()
        if done is not None:
            return TuneResult.from_json(done)
        request = asked
        _ready(request, llm)
    else:
        if request is None:
            raise ConfigError("request is missing: say what to tune, or which run to resume", field="request")
        _ready(request, llm)
        # Chosen before the folder is made: a request that cannot be met leaves nothing behind.
        choose_baseline(request)
        folder = RunFolder.create(out, request, text)
    model, name = _proposer(request, llm)
    begun = clock()
    with Journal(folder.trace, clock, on_event=on_event) as journal:
        oracle = Oracle(request, projector, engine_version=ENGINE_VERSION, path=folder.trials)
        ctx = make_context(
            request, journal=journal, oracle=oracle, budget=Budget(request, clock, begun), llm=model,
            llm_name=name, retry=retry, text=text, run_id=folder.path.name,
        )  # fmt: skip
        _same_request(ctx)
        try:
            ctx, state = _run(ctx, folder)
        except Exception as err:
            # The run's border: the trace says why it broke off, whoever called decides what to do about it.
            told = " ".join(str(err).split())[:400]
            journal.append("note", topic="resume", text=f"broke off: {type(err).__name__}: {told}")
            raise
        result = result_of(ctx, state, run=str(folder.path))
    write_json(folder.result, result.as_json())
    return result


def make_context(
    request: TuneRequest,
    *,
    journal: Journal,
    oracle: Oracle,
    budget: Budget,
    llm: BaseChatModel | None = None,
    llm_name: str = "heuristic",
    retry: RetryPolicy | None = None,
    text: str | None = None,
    run_id: str = "",
) -> Context:
    """The run-time dependencies of one search."""
    baseline = choose_baseline(request)
    return Context(
        request=request,
        baseline=baseline,
        space=SearchSpace(request, baseline),
        oracle=oracle,
        journal=journal,
        budget=budget,
        llm=llm,
        llm_name=llm_name,
        compact=_compact(request),
        retry=retry,
        text=text,
        run_id=run_id,
        versions={"engine": ENGINE_VERSION, "shardwise": __version__},
    )


def _run(ctx: Context, folder: RunFolder) -> tuple[Context, TuneState]:
    from langgraph.checkpoint.sqlite import SqliteSaver

    from shardwise.agent.graph import build_graph, recursion_limit

    with folder.connection() as (connection, anew):
        saver = SqliteSaver(connection)
        app = build_graph(saver)
        config: Any = {
            "configurable": {"thread_id": THREAD},
            "recursion_limit": recursion_limit(ctx.request.budget_calls),
        }
        saved = None if anew else app.get_state(config)
        if saved is not None and saved.values.get("events", 0) > len(ctx.journal.ahead()):
            # The trace was lost: it is told again from the start, out of the scores that are known.
            saved = None
            saver.delete_thread(THREAD)
        given: TuneState | None = started()
        if saved is not None and saved.values:
            ctx = replace(
                ctx, budget=replace(ctx.budget, spent_before_s=float(saved.values.get("spent_s", 0.0)))
            )
            if not saved.next:
                return ctx, _finished(ctx, saved.values)
            given = None
        state = app.invoke(given, config, context=ctx, durability="sync")
    return ctx, _finished(ctx, state)


def _same_request(ctx: Context) -> None:
    """Refuse to go on with a run whose request file says another thing than its trace."""
    then = next((event for event in ctx.journal.ahead() if isinstance(event, RequestEvent)), None)
    now = redact(jsonable(ctx.request.as_json()), ctx.journal.secrets)
    if then is not None and TuneRequest.build(then.request) != TuneRequest.build(now):
        raise ConfigError("request.json was changed since the run began; start a new run", field="resume")


def _finished(ctx: Context, values: Any) -> TuneState:
    state: TuneState = dict(values)  # type: ignore[assignment]  # the graph's output has the state's keys
    ctx.journal.rewind(state["events"])
    # After a rebuild the oracle's file knows the scores; a checkpoint that outlived its trials is of no use.
    for key in state["trials"]:
        if ctx.oracle.known(key) is None:
            raise ConfigError(
                "trials.jsonl lacks a score that the checkpoint names; delete checkpoint.sqlite",
                field="resume",
            )
    return state


def standalone_context(request: object) -> Context:
    """A context for the graph run alone: same engine, heuristic or named LLM, trace in a temporary folder.

    ``request``: words or a mapping of request fields. Raises :class:`ConfigError`.
    """
    if isinstance(request, str):
        built = TuneRequest.of(request)
    elif isinstance(request, dict):
        built = TuneRequest.build(request)
    else:
        raise ConfigError("state has no request: give words, or a mapping of request fields", field="request")
    return _standalone(built.model_dump_json())


@lru_cache(maxsize=8)
def _standalone(text: str) -> Context:
    request = TuneRequest.model_validate_json(text)
    _ready(request, None)
    model, name = _proposer(request, None)
    folder = Path(tempfile.mkdtemp(prefix="shardwise-"))
    return make_context(
        request,
        journal=Journal(folder / "trace.jsonl"),
        oracle=Oracle(request, project, engine_version=ENGINE_VERSION),
        budget=Budget(request, time.monotonic, time.monotonic()),
        llm=model,
        llm_name=name,
    )


def _ready(request: TuneRequest, llm: BaseChatModel | None) -> None:
    """Refuse an LLM that cannot be reached before anything is written."""
    if llm is None:
        check_llm(request.llm, base_url=request.base_url)


def _proposer(request: TuneRequest, llm: BaseChatModel | None) -> tuple[BaseChatModel | None, str]:
    """The chat model and how it is named in the trace. A replayed heuristic trace needs no model."""
    if llm is not None:
        return llm, request.llm
    spec = parse_llm_spec(request.llm)
    if spec.provider == "heuristic":
        return None, request.llm
    if spec.provider == "replay" and not any(event.kind == "prompt" for event in read_trace(spec.model)):
        return None, request.llm
    from shardwise.agent.providers import chat_model

    # Sampling settings only where they are sure to be understood: several hosted models refuse them.
    fixed: dict[str, Any] = {"temperature": 0.0, "seed": request.seed} if _compact(request) else {}
    return chat_model(request.llm, base_url=request.base_url, **fixed), request.llm


def _compact(request: TuneRequest, depth: int = 8) -> bool:
    """Whether the short prompt is used (see ``TuneRequest.prompt_mode``)."""
    if request.prompt_mode != "auto":
        return request.prompt_mode == "compact"
    spec = parse_llm_spec(request.llm)
    if spec.provider == "replay":
        # The recording's own answers fit only the recording's own prompts.
        asked = next((event for event in read_trace(spec.model) if isinstance(event, RequestEvent)), None)
        if not depth:
            raise ConfigError(f"llm {request.llm!r}: replays a replay of a replay, without end", field="llm")
        return asked is not None and _compact(TuneRequest.build(dict(asked.request)), depth - 1)
    if spec.provider == "llamacpp":
        return True
    return request.base_url is not None and urlsplit(request.base_url).hostname in _LOOPBACK
