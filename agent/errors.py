"""The agent's errors, split by who must act next.

``ProviderError``: nobody here can help, so the search goes on without the LLM. ``ProposalInvalid``: the LLM
made a mistake that it can repair. ``BudgetExceeded``: the search stops with the best so far.
``ReplayDiverged``: the recording does not belong to this run.
"""

from __future__ import annotations

from shardwise.engine.errors import ShardwiseError


class ProviderError(ShardwiseError):
    """The LLM provider gave no usable answer, after all retries. The message is one line without secrets."""

    def __init__(self, message: str, *, provider: str = "", attempts: int = 1) -> None:
        super().__init__(message)
        self.provider = provider
        """The provider as the user wrote it (``openai:gpt-x``), or empty."""
        self.attempts = attempts
        """Calls that were made before giving up."""


class ProposalInvalid(ShardwiseError):  # noqa: N818  # says what happened
    """The LLM's proposal cannot be used; the message goes back to the LLM, so it says what is allowed."""


class BudgetExceeded(ShardwiseError):  # noqa: N818  # says what happened
    """A hard limit is reached: ``limit`` names it, ``used`` and ``allowed`` are in its own unit."""

    def __init__(self, limit: str, *, used: float, allowed: float) -> None:
        super().__init__(f"budget {limit} is used up: {used:g} of {allowed:g}")
        self.limit = limit
        self.used = used
        self.allowed = allowed


class ReplayDiverged(ShardwiseError):  # noqa: N818  # says what happened
    """The run asks something else than the recording answers; the message names the first difference."""

    def __init__(self, message: str, *, prompt: int) -> None:
        super().__init__(message)
        self.prompt = prompt
        """Number of the first prompt that differs, from 0."""
