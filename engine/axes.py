"""The axes of the search space: what can vary, and through which values, for a model on a cluster.

An axis sets one field or several that only make sense together (recomputation: granularity, method,
count, modules). A value may be :class:`Derived` from the columns set before it, so that "expert tensor
parallel as wide as tensor parallel" or "half the layers of a chunk" is one value, whatever those are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from shardwise.engine.errors import ConfigError, unknown_name
from shardwise.engine.layout_string import balanced_layout, code_of
from shardwise.engine.legality.experts import supported_dispatchers
from shardwise.engine.legality.rule import common_divisors, divisors
from shardwise.engine.model import Model
from shardwise.engine.pipeline_layout import chunk_layers
from shardwise.engine.recipe import DP_SHARDINGS, PIPELINE_SPLIT, RECOMPUTE_DETAILS, Recipe
from shardwise.engine.table import WORDS, Ints, Table

LONG_SEQUENCE = 16384
"""From this sequence length on, context parallelism is worth a search (tokens)."""
TOKENS_PER_CONTEXT_RANK = 2048
"""Context parallelism is not searched below this local sequence length (tokens)."""
MAX_MICRO_BATCH = 16
"""Largest micro batch size that is searched, sequences."""
BLOCK_SHARES = (0.25, 0.5, 0.75)
"""Shares of a chunk's layers that block recomputation is tried with."""


@dataclass(frozen=True, slots=True)
class Derived:
    """A value computed, row by row, from the columns of earlier axes."""

    name: str
    of: Callable[[Table], Ints]


@dataclass(frozen=True, slots=True)
class Axis:
    """One dimension of the space: ``settings`` hold one value (or :class:`Derived`) per field each."""

    name: str
    fields: tuple[str, ...]
    settings: tuple[tuple[Any, ...], ...]
    ordered: bool = False
    """Whether settings are sizes, so that one step means the next larger or smaller one."""

    def agreeing(self, base: Recipe, fixed: Collection[str]) -> Axis | None:
        """The axis without settings that change a ``fixed`` field of ``base``; None if nothing is left."""
        held = [(i, getattr(base, name)) for i, name in enumerate(self.fields) if name in fixed]
        if len(held) == len(self.fields):
            return None
        kept = tuple(s for s in self.settings if all(s[i] == value for i, value in held))
        return Axis(self.name, self.fields, kept, self.ordered) if kept else None


@dataclass(frozen=True, slots=True)
class Axes:
    """Axes in the order in which the space is enumerated, the first varying slowest."""

    axes: tuple[Axis, ...]

    def __iter__(self) -> Iterator[Axis]:
        return iter(self.axes)

    def __len__(self) -> int:
        return len(self.axes)

    def __getitem__(self, name: str) -> Axis:
        for axis in self.axes:
            if axis.name == name:
                return axis
        raise unknown_name("axis", name, self.names)

    @property
    def names(self) -> tuple[str, ...]:
        """Names in order."""
        return tuple(axis.name for axis in self.axes)

    @property
    def size(self) -> int:
        """Points of the full product, legal or not."""
        return prod(len(axis.settings) for axis in self.axes)


def default_axes(
    base: Recipe,
    *,
    names: Sequence[str] | None = None,
    fixed: Collection[str] = (),
    precisions: Sequence[str] = (),
    across_nodes: bool = False,
) -> Axes:
    """The axes worth searching around ``base``.

    ``names``: only these axes (any field of a recipe can be one). ``fixed``: fields that keep the value of
    ``base``. ``precisions``: allowed besides that of ``base``. ``across_nodes``: let tensor parallelism
    leave the scale-up domain. The values of ``base`` are always among those of an axis. Raises
    :class:`ConfigError` for an unknown axis or precision.
    """
    for word in precisions:
        if word not in WORDS["precision"]:
            raise unknown_name("precision", word, WORDS["precision"])
    build = _Builder(base, tuple(precisions), across_nodes)
    wanted = list(_DEFAULT) if names is None else list(dict.fromkeys(names))
    for name in wanted:
        if name not in axis_names():
            raise unknown_name("axis", name, axis_names())
    built = (build.axis(name) for name in sorted(wanted, key=axis_names().index))
    kept = (axis.agreeing(base, fixed) for axis in built)
    return Axes(tuple(axis for axis in kept if axis is not None and len(axis.settings) > 1))


def one_axis(base: Recipe, name: str, values: Sequence[Any]) -> Axes:
    """A single axis over given ``values`` of field ``name``; what follows from the field follows along."""
    if name not in axis_names() or name in _SEVERAL_FIELDS:
        raise unknown_name("axis", name, [n for n in axis_names() if n not in _SEVERAL_FIELDS])
    allowed = WORDS.get(name)
    for value in values:
        if allowed is not None and value not in allowed:
            raise ConfigError(f"{name} = {value!r}: must be one of {', '.join(allowed)}", field=name)
        if allowed is None and not isinstance(value, (bool, int, float)):
            raise ConfigError(f"{name} = {value!r}: must be a number", field=name)
    return Axes((_Builder(base, (), True).over(name, tuple(dict.fromkeys(values))),))


def axis_names() -> tuple[str, ...]:
    """All axes there are, in the order in which they are enumerated."""
    return (*_DEFAULT, *_ON_REQUEST)


_DEFAULT = (
    "tp", "pp", "vpp", "pipeline_split", "cp", "ep", "etp", "mbs", "dp_sharding", "moe_token_dispatcher",
    "overlap_moe_expert_parallel_comm", "tp_comm_overlap", "precision", "recompute",
)  # fmt: skip
_SWITCHES = (
    "sequence_parallel", "overlap_grad_reduce", "overlap_param_gather", "overlap_p2p_comm", "cuda_graphs",
    "cross_entropy_fusion", "fp8_param_gather", "fsdp_reshard_after_forward",
)  # fmt: skip
_WORDS = ("cp_comm_type", "pp_schedule", "main_grads_dtype", "optimizer_state_dtype", "attention_backend")
_ON_REQUEST = ("gbs", "seq_len", *_SWITCHES, *_WORDS)
_SEVERAL_FIELDS = ("pipeline_split", "recompute")
_SIZES = ("tp", "pp", "vpp", "cp", "ep", "etp", "mbs", "gbs", "seq_len")
_RECOMPUTE = ("recompute", *RECOMPUTE_DETAILS)


@dataclass(frozen=True, slots=True)
class _Builder:
    base: Recipe
    precisions: tuple[str, ...]
    across_nodes: bool

    def axis(self, name: str) -> Axis:
        """The axis ``name`` with its default values and those of the base recipe."""
        if name == "pipeline_split":
            return Axis(name, PIPELINE_SPLIT, self._with_base(PIPELINE_SPLIT, _splits()))
        if name == "recompute":
            return Axis(name, _RECOMPUTE, self._with_base(_RECOMPUTE, _recomputes(self.base)))
        if name == "etp":
            # Experts as wide as attention, or whole; other widths only when the base has one.
            follow = Derived("tp", lambda table: table.tp)
            other = self.base.etp not in (1, self.base.tp)
            whole = ((1,), (follow,)) if self.base.model.is_moe else ()
            return Axis(name, (name,), (*whole, *([(self.base.etp,)] if other else [])), ordered=True)
        values = {*self._values(name), getattr(self.base, name)}
        order = WORDS[name].index if name in WORDS else None
        return self.over(name, tuple(sorted(values, key=order)))

    def over(self, name: str, values: tuple[Any, ...]) -> Axis:
        """The axis ``name`` over ``values``."""
        if name == "tp":
            # Sequence parallelism costs nothing beyond tensor parallelism; the base may still decline it.
            same = {self.base.tp: self.base.sequence_parallel}
            settings = tuple((tp, same.get(tp, tp > 1)) for tp in values)
            return Axis(name, ("tp", "sequence_parallel"), settings, ordered=True)
        return Axis(name, (name,), tuple((value,) for value in values), ordered=name in _SIZES)

    def _with_base(
        self, fields: tuple[str, ...], settings: list[tuple[Any, ...]]
    ) -> tuple[tuple[Any, ...], ...]:
        own = tuple(getattr(self.base, name) for name in fields)
        return tuple(settings) if own in settings else (*settings, own)

    def _values(self, name: str) -> Collection[Any]:
        r, model, gpu = self.base, self.base.model, self.base.cluster.gpu
        world = r.world_size
        sizes: Mapping[str, Callable[[], Collection[Any]]] = {
            "tp": lambda: [d for d in divisors(world) if self.across_nodes or d <= r.cluster.scale_up_size],
            "pp": lambda: [d for d in divisors(world) if d <= model.num_layers + 2],
            "vpp": lambda: _virtual_stages(model, world),
            "cp": lambda: _context_sizes(r.seq_len, world),
            "ep": lambda: common_divisors(model.num_experts, world) if model.num_experts else [],
            "mbs": lambda: [2**i for i in range(MAX_MICRO_BATCH.bit_length())],
            "gbs": lambda: [r.gbs // 2, r.gbs * 2] if r.gbs > 1 else [2],
            "seq_len": lambda: [r.seq_len],
            "precision": lambda: self.precisions,
            "dp_sharding": lambda: [word for word in DP_SHARDINGS if word in ("none", "zero1", "fsdp")],
            "moe_token_dispatcher": lambda: _dispatchers(r),
            "overlap_moe_expert_parallel_comm": lambda: [False, True] if model.is_moe else [],
            # Transformer Engine's user buffers exist on NVIDIA only.
            "tp_comm_overlap": lambda: [False, True] if gpu.vendor == "nvidia" else [],
        }
        if name in sizes:
            return sizes[name]()
        return [False, True] if name in _SWITCHES else WORDS[name]


_LAID_OUT = (2, 4)
"""Chunks a rank that a layout is tried with, as in DeepSeek-V3's recipes (Megatron-LM's, Primus')."""


def _virtual_stages(model: Model, world: int) -> set[int]:
    stages = (
        layers // pp
        for layers in range(model.num_layers, model.num_layers + 3)
        for pp in divisors(world)
        if pp > 1 and layers % pp == 0
    )
    # Layers that nothing divides (61) still interleave, by a balanced layout of two or four chunks a rank.
    fewest = min((pp for pp in divisors(world) if pp > 1), default=model.num_layers)
    laid = (vpp for vpp in _LAID_OUT if fewest * vpp <= model.num_layers)
    return {1, *laid, *(vpp for layers in stages for vpp in divisors(layers))}


def _context_sizes(seq_len: int, world: int) -> list[int]:
    if seq_len < LONG_SEQUENCE:
        return [1]
    most = seq_len // TOKENS_PER_CONTEXT_RANK
    return [d for d in divisors(world) if d & (d - 1) == 0 and d <= most]


def _dispatchers(r: Recipe) -> list[str]:
    if not r.model.is_moe:
        return []
    gpu = r.cluster.gpu
    # DeepEP runs on Ampere, but its kernels are made for Hopper's and later NVLink and TMA.
    fast = gpu.vendor != "other" and gpu.architecture not in ("ampere", "ada")
    # DeepEP's intranode kernels reach the GPUs of one host (CUDA IPC); HybridEP is made for racks.
    best = "hybridep" if r.cluster.fabric.spans_nodes else "deepep"
    usable = fast and best in supported_dispatchers(gpu.vendor, gpu.architecture)
    return ["alltoall", best] if usable else ["alltoall"]


def _splits() -> list[tuple[Any, ...]]:
    """Ways to split layers over stages; each falls back to the even one where it would say the same."""
    # A flag in chunks of one layer would leave the embedding or the loss alone in its chunk.
    piped = Derived(
        "pp > 1", lambda t: ((t.pp > 1) & (t.model.num_layers + 2 >= 2 * t.pp * t.vpp)).astype(np.int64)
    )
    last = Derived("rest in the last stage", _last_stage)
    return [
        (False, False, None, None, None),
        (False, piped, None, None, None),
        (piped, False, None, None, None),
        (piped, piped, None, None, None),
        (False, False, None, last, None),
        (False, False, Derived("half of the rest", lambda t: _ends(t)[0]),
         Derived("rest", lambda t: _ends(t)[1]), None),
        (False, False, None, None, Derived("balanced", _balanced)),
    ]  # fmt: skip


def _balanced(table: Table) -> Ints:
    """A balanced layout where layers do not divide over the chunks; 0 where they do."""
    model = table.model
    codes = np.zeros(len(table), dtype=np.int64)
    for pp, vpp in np.unique(np.stack([table.pp, table.vpp], axis=1), axis=0):
        if pp > 1 and model.num_layers % (pp * vpp):
            text = balanced_layout(model.num_layers, model.mtp_num_layers, int(pp), int(vpp))
            codes[(table.pp == pp) & (table.vpp == vpp)] = code_of(text)
    return codes


def _last_stage(table: Table) -> Ints:
    """Layers of the last stage when the others hold the even share rounded up; 0 where that is even."""
    layers, unit = table.model.num_layers, table.pp * table.vpp
    share = -(-layers // unit) * table.vpp
    last = layers - share * (table.pp - 1)
    useful = (table.pp > 1) & (last > 0) & (last != share) & (last % table.vpp == 0)
    return np.asarray(np.where(useful, last, 0), dtype=np.int64)


def _ends(table: Table) -> tuple[Ints, Ints]:
    """Layers of (first, last) when middle stages take one layer a chunk more than an even share; or 0."""
    layers, vpp = table.model.num_layers, table.vpp
    share = (layers // (table.pp * vpp) + 1) * vpp
    rest = layers - share * (table.pp - 2)
    first = -(-rest // (2 * vpp)) * vpp
    last = rest - first
    useful = (table.pp > 2) & (first > 0) & (last > 0) & (last % vpp == 0)
    zero = np.zeros_like(first)
    return np.where(useful, first, zero), np.where(useful, last, zero)


def _recomputes(r: Recipe) -> list[tuple[Any, ...]]:
    def share(of: float) -> Derived:
        return Derived(
            f"{of:g} of a chunk's layers",
            lambda table: np.asarray(np.ceil(of * chunk_layers(table)), dtype=np.int64),
        )

    return [
        ("none", None, None, ()),
        *(("selective", None, None, modules) for modules in _module_sets(r)),
        *(("full", "block", share(of), ()) for of in BLOCK_SHARES),
        ("full", "uniform", 1, ()),
    ]


def _module_sets(r: Recipe) -> list[tuple[str, ...]]:
    """Sets of modules worth recomputing, from those that cost least time to those that save most memory."""
    model = r.model
    cheap = ["layernorm", *(["mla_up_proj"] if model.multi_latent_attention else [])]
    light = [*cheap, *(["moe_act"] if model.is_moe else [])]
    heavy = ["moe"] if model.is_moe else []
    if not all(model.moe_layers):
        heavy.append("mlp")
    if model.is_moe and model.moe_shared_expert_intermediate_size:
        heavy.append("shared_experts")
    sets = [[module] for module in light] + [light, heavy, [*cheap, *heavy]]
    if r.attention_backend == "unfused":
        # A fused kernel keeps no scores, so recomputing it would save nothing.
        sets = [["core_attn"], *sets, ["core_attn", *cheap, *heavy]]
    return list(dict.fromkeys(tuple(sorted(modules)) for modules in sets))
