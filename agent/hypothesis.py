"""The LLM's turn: it may look around with tools, then proposes candidates.

1. With tools: up to :data:`MAX_STEPS` answers; every tool call is answered, also unknown and malformed ones;
   ``propose`` (or plain JSON in the text) ends the turn.
2. Proposals that cannot be used cost one repair message; what is still wrong afterwards is recorded and
   dropped.
3. A model that neither calls nor answers JSON is asked once more with a JSON schema. In compact mode (small
   local models) that is the only question.
"""

from __future__ import annotations

import json
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from shardwise.agent.briefing import bench_of, compact_prompt, full_prompt, start_of
from shardwise.agent.context import Context
from shardwise.agent.errors import BudgetExceeded
from shardwise.agent.llm_call import ask
from shardwise.agent.nodes.memory_filter import KEPT_REJECTIONS
from shardwise.agent.proposals import MAX_CANDIDATES, find_json, read_proposals, repair_message
from shardwise.agent.replay_model import ReplayModel, exchanges, request_hash
from shardwise.agent.state import Candidate, TuneState
from shardwise.prompts import load
from shardwise.tools.propose import PROPOSE, answer_schema
from shardwise.tools.toolbox import langchain_tools, run_tool
from shardwise.traces.events import LlmResponseEvent

MAX_STEPS = 8
"""Answers of one turn, tool calls and repair included."""
MAX_TOOL_TEXT = 3_000
"""Characters of a tool's answer that the LLM reads."""
COMPACT_CANDIDATES = 3


def propose_with_llm(ctx: Context, state: TuneState) -> tuple[list[Candidate], list[str]]:
    """Valid candidates of one turn, and the rejections the LLM is to read next time.

    Raises :class:`ProviderError` when the provider fails past its retries, :class:`BudgetExceeded` when the
    tokens are used up, :class:`ReplayDiverged` from a recording that does not fit.
    """
    turn = _Turn(ctx, state)
    turn.run_compact() if ctx.compact else turn.run_with_tools()
    return turn.candidates, [*state["rejected"], *turn.problems][-KEPT_REJECTIONS:]


class _Turn:
    """One round's conversation."""

    def __init__(self, ctx: Context, state: TuneState) -> None:
        self._ctx = ctx
        self._state = state
        self._start = start_of(ctx, state)
        self._precisions = frozenset(
            {
                str(ctx.baseline.fields["precision"]),
                str(self._start.fields["precision"]),
                *ctx.request.allow_precision,
            }
        )
        self._repaired = False
        self.candidates: list[Candidate] = []
        self.problems: list[str] = []

    def run_with_tools(self) -> None:
        bench = bench_of(self._ctx, self._state)
        tools = langchain_tools(bench)
        system, user = full_prompt(self._ctx, self._state)
        messages: list[BaseMessage] = [SystemMessage(system), HumanMessage(user)]
        chased = False
        for _step in range(MAX_STEPS):
            answer = self._ask(messages, tools=tools)
            messages.append(answer)
            if answer.tool_calls or answer.invalid_tool_calls:
                replies, done = self._answer_calls(answer)
                messages.extend(replies)
            elif (raw := find_json(str(answer.text))) is not None:
                repair = self._take(raw)
                done = repair is None
                if repair is not None:
                    messages.append(HumanMessage(repair))
            elif not chased:
                chased, done = True, False
                messages.append(HumanMessage(load("chase").text))
            else:
                self.run_compact()
                return
            if done:
                return
        self._drop(f"no proposal after {MAX_STEPS} answers")

    def run_compact(self) -> None:
        text, choices = compact_prompt(self._ctx, self._state)
        schema = answer_schema(choices, most=COMPACT_CANDIDATES)
        messages: list[BaseMessage] = [HumanMessage(text)]
        for _step in range(2):
            answer = self._ask(messages, schema=schema)
            raw = find_json(str(answer.text))
            if raw is None:
                self._drop("the answer holds no JSON")
                return
            repair = self._take(raw)
            if repair is None:
                return
            messages.extend([answer, HumanMessage(repair)])

    def _ask(
        self,
        messages: list[BaseMessage],
        *,
        tools: list[Any] | None = None,
        schema: dict[str, Any] | None = None,
    ) -> AIMessage:
        limit = self._ctx.request.budget_tokens
        if limit is not None and (used := tokens_used(self._ctx)) >= limit:
            raise BudgetExceeded("budget_tokens", used=used, allowed=limit)
        return ask(
            self._model(messages, tools or [], schema),
            messages,
            tools or (),
            writer=self._ctx.journal,
            schema=schema,
            retry_policy=self._ctx.retry,
        )

    def _model(
        self, messages: list[BaseMessage], tools: list[Any], schema: dict[str, Any] | None
    ) -> BaseChatModel:
        """The live model, or the answer that an interrupted pass already got for this very question."""
        assert self._ctx.llm is not None
        journal = self._ctx.journal
        pending = exchanges(journal.ahead())[:1] if journal.behind else []
        now = request_hash(messages, tools, schema, journal.secrets)
        if pending and pending[0].prompt.request_hash == now:
            return ReplayModel(recorded=pending, source="the interrupted run")
        return self._ctx.llm

    def _answer_calls(self, answer: AIMessage) -> tuple[list[ToolMessage], bool]:
        """A reply to every call, and whether the turn is over."""
        journal = self._ctx.journal
        bench = bench_of(self._ctx, self._state)
        replies: list[ToolMessage] = []
        done = False
        for call in answer.tool_calls:
            name, args, call_id = call["name"], call["args"], call["id"] or ""
            journal.append("tool_call", name=name, args=args, call_id=call_id)
            if name == PROPOSE:
                repair = self._take(args)
                done = done or repair is None
                ok, content = (
                    repair is None,
                    {"accepted": len(self.candidates)} if repair is None else {"error": repair},
                )
            else:
                ok, content = run_tool(bench, name, args)
            journal.append("tool_result", name=name, content=content, ok=ok, call_id=call_id)
            replies.append(
                ToolMessage(_text(content), tool_call_id=call_id, status="success" if ok else "error")
            )
        for broken in answer.invalid_tool_calls:
            content = {"error": f"the arguments of {broken['name']!r} are no JSON object: {broken['error']}"}
            journal.append(
                "tool_result", name=str(broken["name"]), content=content, ok=False, call_id=broken["id"] or ""
            )
            replies.append(ToolMessage(_text(content), tool_call_id=broken["id"] or "", status="error"))
        return replies, done

    def _take(self, raw: Any) -> str | None:
        """Keep what is valid; the repair message when something is not and none was sent yet, else None."""
        found, problems = read_proposals(
            raw, self._start.fields, self._ctx.request, precisions=self._precisions
        )
        known = [candidate["fields"] for candidate in self.candidates]
        room = MAX_CANDIDATES - len(self.candidates)
        self.candidates.extend([c for c in found if c["fields"] not in known][:room])
        if not problems:
            return None
        if not self._repaired:
            self._repaired = True
            self._record(problems)
            return repair_message(problems)
        for problem in problems:
            self._drop(problem)
        return None

    def _drop(self, problem: str) -> None:
        self.problems.append(problem)
        self._record([problem])

    def _record(self, problems: list[str]) -> None:
        for problem in problems:
            self._ctx.journal.append("rejection", by="schema", message=problem, round=self._state["round"])


def tokens_used(ctx: Context) -> int:
    """LLM tokens of this run so far, as the provider counted them."""
    counts: list[Any] = [
        event.usage.get("total_tokens")
        for event in ctx.journal.told()
        if isinstance(event, LlmResponseEvent) and event.usage
    ]
    return sum(int(count or 0) for count in counts)


def _text(content: dict[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True)
    return text if len(text) <= MAX_TOOL_TEXT else text[: MAX_TOOL_TEXT - 20] + '... (cut)"}'
