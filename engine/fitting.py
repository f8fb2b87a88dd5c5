"""Gauss-Newton on log(predicted / measured) throughput, with priors: the arithmetic of a calibration.

Each parameter is fitted in log space with a Gaussian prior at its starting value, so that one the cases
say nothing about stays where it was. Residuals are weighted robustly (Student-t), and cases of one group
share their votes. Leaving cases out reuses the derivatives of the whole fit (``Fitter.without``).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.engine.efficiency import Calibration
from shardwise.engine.projection import project_table
from shardwise.engine.recipe import Recipe
from shardwise.engine.table import Bools, Floats, Table

PRIOR_SPREAD: dict[str, float] = {
    "clock": 0.05,
    "gemm_16bit": 0.10,
    "gemm_fp8": 0.10,
    "gemm_fp4": 0.10,
    "grouped_gemm": 0.15,
    "grouped_gemm_quantised": 0.15,
    "attention_forward": 0.12,
    "attention_backward": 0.12,
    "unfused_attention": 0.3,
    "sink_attention": 0.4,
    "hbm": 0.07,
    "permute": 0.20,
    "optimizer": 0.20,
    "fabric": 0.07,
    "nic": 0.07,
    "all_to_all": 0.20,
    "deepep": 0.15,
    "collective_launch_s": 0.4,
    "host_dense_layer_s": 0.4,
    "host_moe_layer_s": 0.4,
    "moe_sync_s": 0.7,
    "moe_host_gain": 0.5,
    "cuda_graph_attn_host": 0.2,
    "cuda_graph_router_host": 0.1,
    "tp_overlap": 0.15,
    "backward_tp_overlap": 0.2,
    "dp_overlap": 0.15,
    "fsdp_overlap": 0.15,
    "ep_overlap": 0.15,
    "overlap_slowdown": 0.4,
    "eager_passes": 0.3,
    "torchtitan": 0.07,
    "nanotron": 0.07,
    "deepspeed": 0.07,
    "maxtext": 0.07,
    "pytorch": 0.07,
    "software_gain": 0.5,
    "moe_software_gain": 0.5,
    "step_overhead_s": 0.4,
    "straggler": 0.5,
}
"""Fitted parameters and one standard deviation of their prior, in log space. How sure we were before: links
are published within 7%, kernel rates within 10%, latencies and host times within 1.5 times. Parameters not
named stay at their starting value."""

_RATIOS = frozenset({"clock", "eager_passes", "torchtitan", "nanotron", "deepspeed", "maxtext", "pytorch"})
"""Parameters that are no share of a peak."""

_FRACTION_LIMIT = 0.97
"""No fitted share of a peak may exceed this."""

_NOISE = 0.05
"""Spread of log throughput that is nobody's fault: the same recipe over releases and sites differs by
0.9 to 1.9% in the median and 4.7 to 25% at the 90th percentile."""

_DEGREES = 4.0
"""Of freedom of the residuals' Student-t."""

_STEP = 0.02
"""Finite-difference step in log space."""

_REWEIGHTINGS = 8
"""Solves of the linearised problem per step, in which the robust weights settle."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A recipe with its measured throughput."""

    id: str
    recipe: Recipe
    tokens_per_s_per_gpu: float
    group: str
    """Cases of one group share their votes: same source, GPU and precision."""
    family: str
    """The model's family, for cross-validation."""


class Fitter:
    """A set of observations and the parameters that bear on them."""

    def __init__(self, observations: Sequence[Observation], start: Calibration) -> None:
        assert observations, "nothing to fit to"
        self.observations = observations
        self.start = start
        self.names = _parameters(start, observations)
        self.prior: Floats = np.log([_get(start, scope, name) for scope, name in self.names])
        self.votes = _votes(observations)
        self._precision = np.diag([PRIOR_SPREAD[name] ** -2.0 for _, name in self.names])
        self._batches = _batches(observations)
        self._measured: Floats = np.log([o.tokens_per_s_per_gpu for o in observations])

    def calibration(self, theta: Floats) -> Calibration:
        """The starting calibration with the fitted parameters at exp(``theta``)."""
        default = dict(self.start.default)
        overrides = {scope: dict(values) for scope, values in self.start.overrides.items()}
        for (scope, name), value in zip(self.names, np.exp(theta), strict=True):
            (default if scope == "default" else overrides[scope])[name] = float(value)
        return Calibration(default, overrides, self.start.residuals)

    def residuals(self, theta: Floats) -> Floats:
        """log(predicted / measured) of every observation (n,)."""
        predicted = np.empty(len(self.observations))
        calibration = self.calibration(theta)
        for rows, table in self._batches:
            predicted[rows] = _log_throughput(table, calibration)
        return np.asarray(predicted - self._measured)

    def derivatives(self, theta: Floats, now: Floats) -> Floats:
        """Of the residuals ``now`` by the parameters at ``theta`` (n, parameters)."""
        jacobian = np.zeros((len(now), len(theta)))
        for i, (scope, name) in enumerate(self.names):
            moved = theta.copy()
            moved[i] -= _STEP
            calibration = self.calibration(moved)
            for rows, table in self._batches:
                if _scope(self.start, table, name) == scope:
                    changed = _log_throughput(table, calibration) - self._measured[rows]
                    jacobian[rows, i] = (now[rows] - changed) / _STEP
        return jacobian

    def step(self, theta: Floats, now: Floats, jacobian: Floats, kept: Bools | None = None) -> Floats:
        """The best parameters by the model linearised at ``theta``, from the observations ``kept``."""
        rows = slice(None) if kept is None else kept
        part, residual, votes = jacobian[rows], now[rows], self.votes[rows]
        moved = theta.copy()
        for _ in range(_REWEIGHTINGS):
            error = residual + part @ (moved - theta)
            weight = votes * (_DEGREES + 1) / (_DEGREES + (error / _NOISE) ** 2) / _NOISE**2
            curvature = part.T @ (weight[:, None] * part) + self._precision
            gradient = part.T @ (weight * error) + self._precision @ (moved - self.prior)
            moved = self._bounded(np.asarray(moved - np.linalg.solve(curvature, gradient)))
        return moved

    def informed(self, now: Floats, jacobian: Floats) -> Floats:
        """Share of each prior's variance that the observations take away; 0 = an echo (parameters,)."""
        weight = self.votes * (_DEGREES + 1) / (_DEGREES + (now / _NOISE) ** 2) / _NOISE**2
        curvature = jacobian.T @ (weight[:, None] * jacobian) + self._precision
        return np.asarray(1 - np.diag(np.linalg.inv(curvature)) * np.diag(self._precision))

    def fit(self, iterations: int, progress: Callable[[int, int], None] | None = None) -> Fitted:
        """Gauss-Newton from the priors; one more evaluation of the derivatives than there are steps."""
        theta = self.prior.copy()
        for iteration in range(iterations + 1):
            now = self.residuals(theta)
            jacobian = self.derivatives(theta, now)
            if iteration < iterations:
                theta = self.step(theta, now, jacobian)
            if progress is not None:
                progress(iteration + 1, iterations + 1)
        return Fitted(self, theta, now, jacobian)

    def _bounded(self, theta: Floats) -> Floats:
        share = np.array([not name.endswith("_s") and name not in _RATIOS for _, name in self.names])
        return np.where(share, np.minimum(theta, np.log(_FRACTION_LIMIT)), theta)


@dataclass(frozen=True, slots=True)
class Fitted:
    """A fit, and what cross-validation needs of it."""

    fitter: Fitter
    theta: Floats
    residuals: Floats
    jacobian: Floats

    def without(self, left_out: Bools) -> Calibration:
        """The calibration that the other observations give: their own optimum of the model linearised at
        this fit, so that no derivative is evaluated again."""
        return self.fitter.calibration(self.fitter.step(self.theta, self.residuals, self.jacobian, ~left_out))

    def predicted_without(self, left_out: Bools) -> Floats:
        """log(predicted / measured) of the observations ``left_out`` under :meth:`without`, evaluated."""
        calibration = self.without(left_out)
        fitter, found = self.fitter, np.full(len(left_out), np.nan)
        for rows, table in fitter._batches:
            chosen = np.flatnonzero(left_out[rows])
            if len(chosen):
                at = np.asarray(rows)[chosen]
                found[at] = _log_throughput(table.take(chosen), calibration) - fitter._measured[at]
        return found[left_out]

    @property
    def measured(self) -> Floats:
        """log of the measured tokens/s/GPU (n,)."""
        return self.fitter._measured


def _log_throughput(table: Table, calibration: Calibration) -> Floats:
    return np.asarray(np.log(project_table(table, calibration=calibration).tokens_per_s_per_gpu))


def _scope(start: Calibration, table: Table, name: str) -> str:
    """The most specific scope in which ``name`` has a value for the table's GPU."""
    gpu = table.cluster.gpu
    scopes = (gpu.name, gpu.architecture, gpu.vendor)
    return next((s for s in scopes if name in start.overrides.get(s, {})), "default")


def _parameters(start: Calibration, observations: Sequence[Observation]) -> list[tuple[str, str]]:
    """(scope, name) of every fitted parameter that some observation's GPU uses."""
    gpus = {o.recipe.cluster.gpu.name: o for o in observations}
    tables = [Table.of([o.recipe]) for o in gpus.values()]
    return sorted({(_scope(start, table, name), name) for table in tables for name in PRIOR_SPREAD})


def _get(calibration: Calibration, scope: str, name: str) -> float:
    return (calibration.default if scope == "default" else calibration.overrides[scope])[name]


def _votes(observations: Sequence[Observation]) -> Floats:
    """Weight of each observation: a group of k cases counts as sqrt(k)."""
    sizes = Counter(o.group for o in observations)
    return np.array([sizes[o.group] ** -0.5 for o in observations])


def _batches(observations: Sequence[Observation]) -> list[tuple[list[int], Table]]:
    """Tables of observations that share model and cluster, with their positions."""
    together: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for i, o in enumerate(observations):
        recipe = o.recipe
        key = (recipe.model, recipe.cluster.model_dump_json(), recipe.moe_tokens_per_expert)
        together[key].append(i)
    return [(rows, Table.of([observations[i].recipe for i in rows])) for rows in together.values()]
