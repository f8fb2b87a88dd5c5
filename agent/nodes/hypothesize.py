"""Hypothesizer: asks the LLM, or the heuristic proposer, for the next candidates."""

from __future__ import annotations

from langgraph.runtime import Runtime

from shardwise.agent import heuristic
from shardwise.agent.context import Context, enter
from shardwise.agent.errors import BudgetExceeded, ProviderError
from shardwise.agent.state import Candidate, TuneState

BATCH = 5
"""Candidates of one heuristic round."""


def hypothesizer(state: TuneState, runtime: Runtime[Context]) -> TuneState:
    """Fill the queue. A provider that failed for good is replaced by the heuristic, and the trace says so."""
    ctx = enter(state, runtime.context)
    update = TuneState()
    proposer = state["proposer"]
    queue: list[Candidate] = []
    if not len(ctx.space.fitting):
        # No model can propose what fits where nothing does.
        return ctx.leave(TuneState(queue=[], stop=_nothing_left(ctx, state)))
    if proposer == "llm":
        from shardwise.agent.hypothesis import propose_with_llm

        try:
            queue, rejected = propose_with_llm(ctx, state)
            update["rejected"] = rejected
        except ProviderError as err:
            reason = str(err)
            ctx.journal.append("fallback", provider=ctx.llm_name, reason=reason, to="heuristic")
            proposer = "heuristic"
            update["proposer"], update["fallback"] = proposer, reason
        except BudgetExceeded as err:
            ctx.journal.append(
                "budget", used={"tokens": err.used}, limits={"tokens": err.allowed}, exhausted=str(err)
            )
            proposer = "heuristic"
            update["proposer"] = proposer
    if proposer == "heuristic":
        queue = heuristic.propose(
            ctx.space,
            ctx.trials(state),
            ctx.incumbent(state),
            objective=ctx.request.objective,
            count=min(BATCH, ctx.budget.calls_left(len(state["trials"]))),
            seed=ctx.request.seed,
        )
        if not queue:
            update["stop"] = _nothing_left(ctx, state)
    update["queue"] = queue
    return ctx.leave(update)


def _nothing_left(ctx: Context, state: TuneState) -> str:
    if state.get("incumbent") is not None:
        return "every legal recipe that fits was tried"
    if not len(ctx.space.legal):
        return "no legal recipe in the space"
    return "no legal recipe fits in memory"
