"""The deterministic seed plan: the baseline, then one axis at a time around it, in order of impact.

Values nearest to the anchor come first and axes take turns, so that a small budget still touches every
axis once before any axis a second time.
"""

from __future__ import annotations

import numpy as np

from shardwise.agent.baseline import Baseline
from shardwise.agent.features import AXES, Coding, differing
from shardwise.agent.searchspace import SearchSpace
from shardwise.agent.state import Candidate
from shardwise.agent.trial import Fields, changed, fields_of, words

IMPACT: tuple[str, ...] = (
    "recompute",
    "mbs",
    "pp",
    "vpp",
    "ep",
    "tp",
    "etp",
    "cp",
    "dp_sharding",
    "moe_token_dispatcher",
    "overlap_moe_expert_parallel_comm",
    "tp_comm_overlap",
    "overlap_grad_reduce",
    "overlap_param_gather",
    "precision",
)
"""Axes in the order of what they usually move; axes not named here follow in recipe order."""
MAX_PLANNED = 64
"""Longest plan; a plan also holds what memory may reject, so it is longer than its share of the budget."""
SEED_SHARE = 0.5
"""Share of the oracle calls that the plan may use; the rest is for combinations."""


def seed_budget(calls: int) -> int:
    """Oracle calls that the plan may use, of ``calls`` in all; at least the baseline's one."""
    return max(1, round(calls * SEED_SHARE))


def plan(baseline: Baseline, space: SearchSpace) -> list[Candidate]:
    """The seed plan: baseline, the anchor that fits when the baseline does not, then single-axis moves."""
    anchor = space.anchor
    out = [
        Candidate(
            fields=baseline.fields,
            changes={},
            origin=baseline.origin,
            axis="",
            rationale=f"baseline: {baseline.source}",
            expected_gain_pct=None,
            reference=True,
        )
    ]
    if anchor is not None and anchor != baseline.fields:
        difference = changed(baseline.fields, anchor)
        out.append(
            Candidate(
                fields=anchor,
                changes=difference,
                origin="constructed",
                axis="",
                rationale=f"the baseline does not fit; a plain recipe that does: {words(difference)}",
                expected_gain_pct=None,
                reference=False,
            )
        )
    out.extend(_sweeps(anchor if anchor is not None else baseline.fields, space))
    return out[:MAX_PLANNED]


def _sweeps(anchor: Fields, space: SearchSpace) -> list[Candidate]:
    coding = space.coding
    if not len(space.legal) or not coding.axes:
        return []
    codes = space.legal_codes
    here = coding.codes(space.table_of([anchor]))[0]
    single = np.flatnonzero(differing(codes, here) == 1)
    moved = codes[single] != here
    by_axis: dict[str, list[Candidate]] = {}
    for column in _ordered(coding):
        axis = coding.axes[column]
        rows = single[moved[:, column]]
        distance = np.abs(codes[rows, column].astype(np.int64) - int(here[column]))
        moves = [
            _move(anchor, fields_of(space.legal.recipe(int(row))), axis)
            for row in rows[np.argsort(distance, kind="stable")]
        ]
        by_axis[axis] = sorted(moves, key=_telling) if axis == "recompute" else moves
    out: list[Candidate] = []
    while any(by_axis.values()):
        out.extend(moves.pop(0) for moves in by_axis.values() if moves)
    return out


def _move(anchor: Fields, fields: Fields, axis: str) -> Candidate:
    changes = changed(anchor, fields)
    return Candidate(
        fields=fields,
        changes=changes,
        origin="planner",
        axis=axis,
        rationale=f"sweep of {axis}: {words(changes)}",
        expected_gain_pct=None,
        reference=False,
    )


def _telling(move: Candidate) -> tuple[int, int]:
    """Recomputation choices, the most telling first: none, all, module sets (large first), blocks."""
    fields = move["fields"]
    kinds = {"none": 0, "full": 1 if fields.get("recompute_method") == "uniform" else 3, "selective": 2}
    return kinds[fields["recompute"]], -len(fields.get("recompute_modules", []))


def _ordered(coding: Coding) -> list[int]:
    rank = {axis: i for i, axis in enumerate([*IMPACT, *(axis for axis in AXES if axis not in IMPACT)])}
    return sorted(range(len(coding.axes)), key=lambda i: rank[coding.axes[i]])
