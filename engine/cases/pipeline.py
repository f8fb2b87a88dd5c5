"""How a case spreads its layers over pipeline stages.

Most cases divide evenly, or do so when the embedding and the loss count as a layer each. The others have
a hand-made layout (``Et*4|(tttt|)*14tmL``) or a framework that deals layers out one by one. A recipe can
only state the layers of the first and the last rank, each spread equally over its chunks; this picks the
nearest such split: middle stages full, as the slowest stage decides the step time.
"""

from __future__ import annotations

from typing import Any

from shardwise.engine.cases.reading import Case
from shardwise.engine.cases.scope import CannotScoreError


def split_fields(case: Case, layers: int, pp: int, vpp: int, assumptions: list[str]) -> dict[str, Any]:
    """Recipe fields of an uneven split; empty when every chunk has equally many layers.

    Raises :class:`CannotScoreError` when first and last stage cannot take the remainder.
    """
    chunks = pp * vpp
    both = {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True}
    if pp > 1 and case.options.get("embedding_and_loss_counted_as_layers"):
        return both
    if pp == 1 or layers % chunks == 0:
        return {}
    if (layers + 2) % chunks == 0:
        assumptions.append("embedding and loss count as pipeline layers: the layers divide only then")
        return both
    full = -(-layers // chunks)
    if pp == 2:
        first, last = (full * vpp, full * vpp) if vpp > 1 else (full, layers - full)
    else:
        rounds = (layers - (pp - 2) * full * vpp) // vpp
        first = min(full, rounds - 1) * vpp
        last = min(full * vpp, rounds * vpp - first)
    if first < 1 or last < 1:
        raise CannotScoreError(f"{layers} layers on {pp} stages of {vpp} chunk(s): such an uneven split is not modelled")
    assumptions.append(f"{first} layers on the first and {last} on the last pipeline stage, {full} a middle chunk")
    return {"num_layers_in_first_pipeline_stage": first, "num_layers_in_last_pipeline_stage": last}
