"""Helpers of the agent's tests: a small request, a scripted chat model, a failing projector."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableLambda
from pydantic import Field, PrivateAttr

from shardwise.agent.request import TuneRequest
from shardwise.engine.projection import project
from shardwise.engine.recipe import Recipe
from shardwise.engine.results import Projection


def small_request(**fields: Any) -> TuneRequest:
    """A dense model on one node without recomputation: a space of some hundred recipes."""
    fixed = {"recompute": "none", **fields.pop("fixed", {})}
    given = {"model": "llama-3-8b", "cluster": "h100:1x8", "budget_calls": 24, "fixed": fixed}
    return TuneRequest.build({**given, **fields})


def calls(*items: tuple[str, dict[str, Any]]) -> AIMessage:
    """An answer that calls tools."""
    return AIMessage(
        content="",
        tool_calls=[
            {"name": name, "args": args, "id": f"c{i}", "type": "tool_call"}
            for i, (name, args) in enumerate(items)
        ],
    )


def proposing(*changes: dict[str, Any], gain: float = 1.0) -> AIMessage:
    """An answer that proposes."""
    return calls(
        (
            "propose",
            {"candidates": [{"changes": c, "rationale": "test", "expected_gain_pct": gain} for c in changes]},
        )
    )


def text(data: Any) -> AIMessage:
    """An answer in JSON text."""
    return AIMessage(content=json.dumps(data))


class Scripted(BaseChatModel):
    """Gives the scripted answers in order; an exception in the script is raised, a callable called."""

    script: list[Any]
    asked: list[list[BaseMessage]] = Field(default_factory=list)
    structured: int = 0
    _next: int = PrivateAttr(default=0)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        return self

    def with_structured_output(self, schema: Any, **kwargs: Any) -> Any:
        def ask(messages: list[BaseMessage]) -> dict[str, Any]:
            self.structured += 1
            return {"raw": self.invoke(messages), "parsed": None, "parsing_error": None}

        return RunnableLambda(ask)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        self.asked.append(list(messages))
        step = self.script[min(self._next, len(self.script) - 1)]
        self._next += 1
        if isinstance(step, Exception):
            raise step
        answer = step(messages) if callable(step) else step
        return ChatResult(generations=[ChatGeneration(message=answer.model_copy(deep=True))])


class Interrupted(BaseException):
    """Stands for a kill: nothing catches it."""


def interrupted_at(call: int) -> tuple[Callable[[Recipe], Projection], list[str]]:
    """A projector that dies at its ``call``-th call (from 1), and the list of keys it scored."""
    from shardwise.engine.recipe_io import recipe_key

    scored: list[str] = []

    def projector(recipe: Recipe) -> Projection:
        if len(scored) + 1 == call:
            raise Interrupted
        scored.append(recipe_key(recipe))
        return project(recipe)

    return projector, scored
