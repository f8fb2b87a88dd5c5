"""The heuristic proposer: no LLM, deterministic, and what every LLM is measured against.

Each round it fits the surrogate to the trials so far, ranks every untried legal recipe that fits, and
proposes a few: those with the best optimistic estimate, each chosen as if the ones before it had come
out as predicted (so that they differ), and neighbours of the incumbent.
"""

from __future__ import annotations

import numpy as np

from shardwise.agent.features import differing
from shardwise.agent.searchspace import SearchSpace
from shardwise.agent.state import Candidate
from shardwise.agent.surrogate import Points, Surrogate
from shardwise.agent.trial import Fields, Trial, changed, fields_of, words
from shardwise.engine.table import Floats, Ints

SHORTLIST = 4_000
"""Rows that the additive part passes on to the full model."""
NEIGHBOURS = 2_000
"""Rows within two axes of the incumbent that are looked at whatever the additive part says."""
NEAR = 2
"""Proposals of a round that are one axis away from the incumbent."""
OPTIMISM = 0.7
"""Standard deviations by which an uncertain recipe is given the benefit of the doubt."""


def propose(
    space: SearchSpace,
    trials: list[Trial],
    incumbent: Trial | None,
    *,
    objective: str,
    count: int,
    seed: int = 0,
) -> list[Candidate]:
    """At most ``count`` untried recipes, most promising first; empty when the space is exhausted.

    ``trials`` are the scored recipes, at least one. ``incumbent`` is the best that fits, or None.
    """
    scored = [trial for trial in trials if trial.score(objective) > 0]
    if not len(space.fitting) or not scored or count < 1:
        return []
    known = Points.of(space.table_of([trial.fields for trial in scored]), space.coding)
    log_times = -np.log([trial.score(objective) for trial in scored])
    start = incumbent or scored[0]
    here = Points.of(space.table_of([start.fields]), space.coding)
    rows = _shortlist(space, Surrogate(known, log_times), known, here)
    chosen: list[Candidate] = []
    jitter = np.random.default_rng(seed).random(len(rows)) * 1e-9
    near = differing(space.points.codes[rows], here.codes[0]) <= 1
    for number in range(count):
        if not len(rows):
            break
        mean, sd = Surrogate(known, log_times).mean_and_sd(space.points.take(rows))
        hope = np.round(mean - OPTIMISM * sd, 9) + jitter
        # The last of a round stay next to the incumbent: what the model gets wrong afar cannot mislead them.
        pool = near if number >= count - NEAR and near.any() else np.ones(len(rows), dtype=bool)
        best = int(np.argmin(np.where(pool, hope, np.inf)))
        expected = float(-np.log(start.score(objective)) - mean[best])
        chosen.append(_candidate(start.fields, fields_of(space.fitting.recipe(int(rows[best]))), expected))
        picked = space.points.take([rows[best]])
        known = known.joined(picked)
        log_times = np.append(log_times, mean[best])
        left = np.arange(len(rows)) != best
        rows, jitter, near = rows[left], jitter[left], near[left]
    return chosen


def _shortlist(space: SearchSpace, surrogate: Surrogate, known: Points, here: Points) -> Ints:
    """Untried rows worth a closer look, ascending."""
    points = space.points
    estimate = np.round(surrogate.additive(points), 9)
    untried = ~np.isin(space.coding.identity(points.codes), space.coding.identity(known.codes))
    rows = np.flatnonzero(untried)
    best = rows[_smallest(estimate[rows], SHORTLIST)]
    close = rows[differing(points.codes[rows], here.codes[0]) <= 2]
    close = close[_smallest(estimate[close], NEIGHBOURS)]
    return np.union1d(best, close)


def _smallest(values: Floats, count: int) -> Ints:
    if len(values) <= count:
        return np.arange(len(values))
    return np.argsort(values, kind="stable")[:count]


def _candidate(start: Fields, fields: Fields, log_gain: float) -> Candidate:
    changes = changed(start, fields)
    gain = 100.0 * float(np.expm1(log_gain))
    return Candidate(
        fields=fields,
        changes=changes,
        origin="heuristic",
        axis="",
        rationale=f"{words(changes)}: the trials so far predict {gain:+.1f}%",
        expected_gain_pct=round(gain, 3),
        reference=False,
    )
