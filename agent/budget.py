"""Hard budgets: oracle calls and wall clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shardwise.agent.request import TuneRequest


@dataclass(frozen=True, slots=True)
class Budget:
    """What may still be spent. Time counts over all parts of a resumed run."""

    request: TuneRequest
    clock: Callable[[], float]
    """Monotonic seconds."""
    started_s: float
    """``clock()`` when this part of the run began."""
    spent_before_s: float = 0.0
    """Seconds that earlier, interrupted parts took."""

    def elapsed_s(self) -> float:
        """Seconds spent so far, all parts together."""
        return self.spent_before_s + self.clock() - self.started_s

    def calls_left(self, used: int) -> int:
        """Oracle calls left after ``used``."""
        return max(0, self.request.budget_calls - used)

    def exhausted(self, used: int) -> str | None:
        """Why no further oracle call is allowed, in words; None while one is."""
        if not self.calls_left(used):
            return f"budget of {self.request.budget_calls} oracle calls used up"
        limit = self.request.budget_time_s
        if limit is not None and self.elapsed_s() >= limit:
            return f"time budget of {limit:g} s used up"
        return None
