"""``Table``: many recipes of one model on one cluster as columns. One recipe is a table of one row.

Every formula of the engine takes a table and returns arrays along its rows, so the pre-filter, the
exhaustive sweep and the single projection are the same code. Words (``dp_sharding``, ``precision``,
...) are stored as the index into the tuple of allowed words of :mod:`shardwise.engine.recipe`;
``recompute_modules`` is a bit mask in the order of ``RECOMPUTE_MODULES``; an unset count is 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwise.engine.cluster import Cluster
from shardwise.engine.layout_string import code_of, text_of
from shardwise.engine.model import Model
from shardwise.engine.recipe import (
    CP_COMM_TYPES,
    CROSS_ENTROPY_IMPLS,
    CUDA_GRAPH_SCOPES,
    DISPATCHERS,
    DP_SHARDINGS,
    FRAMEWORKS,
    MAIN_PARAMS_DTYPES,
    OPTIMIZERS,
    PRECISIONS,
    RECOMPUTE_MODULES,
    RECOMPUTES,
    SCHEDULES,
    STATE_DTYPES,
    TRANSFORMER_IMPLS,
    Recipe,
)

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

METHODS: tuple[str, ...] = ("uniform", "block")
DTYPES: tuple[str, ...] = ("fp32", "bf16")
BACKENDS: tuple[str, ...] = ("flash", "unfused")

WORDS: dict[str, tuple[str, ...]] = {
    "framework": FRAMEWORKS,
    "transformer_impl": TRANSFORMER_IMPLS,
    "dp_sharding": DP_SHARDINGS,
    "pp_schedule": SCHEDULES,
    "recompute": RECOMPUTES,
    "recompute_method": METHODS,
    "precision": PRECISIONS,
    "main_grads_dtype": DTYPES,
    "main_params_dtype": MAIN_PARAMS_DTYPES,
    "optimizer_state_dtype": STATE_DTYPES,
    "optimizer": OPTIMIZERS,
    "cp_comm_type": CP_COMM_TYPES,
    "moe_token_dispatcher": DISPATCHERS,
    "attention_backend": BACKENDS,
    "cross_entropy_fusion_impl": CROSS_ENTROPY_IMPLS,
    "cuda_graph_scope": CUDA_GRAPH_SCOPES,
}
"""For each column of words: the allowed words; the column holds indices."""


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Columns of equal length, int64 unless said otherwise."""

    model: Model
    cluster: Cluster
    tp: Ints
    pp: Ints
    vpp: Ints
    cp: Ints
    ep: Ints
    etp: Ints
    mbs: Ints
    gbs: Ints
    seq_len: Ints
    sequence_parallel: Bools
    framework: Ints
    transformer_impl: Ints
    dp_sharding: Ints
    dp_shard_size: Ints
    fsdp_reshard_after_forward: Bools
    pp_schedule: Ints
    num_layers_in_first_pipeline_stage: Ints
    num_layers_in_last_pipeline_stage: Ints
    account_for_embedding_in_pipeline_split: Bools
    account_for_loss_in_pipeline_split: Bools
    pipeline_model_parallel_layout: Ints
    """Numbers of layouts (:mod:`~shardwise.engine.layout_string`); 0 = none."""
    recompute: Ints
    recompute_method: Ints
    recompute_num_layers: Ints
    recompute_modules: Ints
    precision: Ints
    main_grads_dtype: Ints
    main_params_dtype: Ints
    optimizer_state_dtype: Ints
    optimizer: Ints
    optimizer_offload_fraction: Floats
    cpu_offloading_num_layers: Ints
    fp8_param_gather: Bools
    overlap_grad_reduce: Bools
    overlap_param_gather: Bools
    tp_comm_overlap: Bools
    overlap_p2p_comm: Bools
    cp_comm_type: Ints
    moe_token_dispatcher: Ints
    overlap_moe_expert_parallel_comm: Bools
    moe_imbalance: Floats
    moe_expert_capacity_factor: Floats
    """0 = dropless."""
    attention_backend: Ints
    cross_entropy_fusion: Bools
    cross_entropy_fusion_impl: Ints
    loss_parallel: Bools
    norm_fusion: Bools
    cuda_graphs: Bools
    cuda_graph_scope: Ints
    torch_compile: Bools
    expandable_segments: Bools
    software_year: Floats
    reserved_by_other_gib: Floats
    moe_tokens_per_expert: tuple[float, ...] = ()
    """Shared by all rows, like the model and the cluster; empty = none."""

    def __len__(self) -> int:
        return len(self.tp)

    # Derived columns: one definition for legality, memory and time alike.

    @property
    def dp(self) -> Ints:
        """Data parallel size, world/(tp*pp*cp), rounded down (legality tells when it does not divide)."""
        return np.asarray(np.maximum(self.cluster.world_size // (self.tp * self.pp * self.cp), 1))

    @property
    def edp(self) -> Ints:
        """Expert data parallel size, world/(etp*ep*pp), rounded down."""
        return np.asarray(np.maximum(self.cluster.world_size // (self.etp * self.ep * self.pp), 1))

    @property
    def num_microbatches(self) -> Ints:
        """Micro-batches per step and pipeline, rounded down, at least 1."""
        return np.maximum(self.gbs // (self.mbs * self.dp), 1)

    def recompute_module(self, name: str) -> Bools:
        """Whether selective recomputation covers ``name`` (one of ``RECOMPUTE_MODULES``)."""
        bit = 1 << RECOMPUTE_MODULES.index(name)
        return np.asarray(
            (self.recompute == RECOMPUTES.index("selective")) & ((self.recompute_modules & bit) != 0)
        )

    def is_word(self, column: str, *words: str) -> Bools:
        """Whether ``column`` holds one of ``words``."""
        codes = getattr(self, column)
        matches: Bools = codes == WORDS[column].index(words[0])
        for word in words[1:]:
            matches = matches | (codes == WORDS[column].index(word))
        return matches

    def take(self, rows: npt.ArrayLike) -> Table:
        """The given rows (indices or a boolean mask), as a new table."""
        index = np.asarray(rows)
        return replace(self, **{name: getattr(self, name)[index] for name in COLUMNS})

    @classmethod
    def stacked(cls, pieces: Sequence[Table]) -> Table:
        """Tables of one model and cluster, one below the other; at least one."""
        if len(pieces) == 1:
            return pieces[0]
        columns = {name: np.concatenate([getattr(piece, name) for piece in pieces]) for name in COLUMNS}
        first = pieces[0]
        return cls(first.model, first.cluster, **columns, moe_tokens_per_expert=first.moe_tokens_per_expert)

    def recipe(self, row: int) -> Recipe:
        """Row ``row`` as a validated :class:`Recipe`."""
        data: dict[str, Any] = {
            "model": self.model,
            "cluster": self.cluster,
            "moe_tokens_per_expert": self.moe_tokens_per_expert,
        }
        for name in COLUMNS:
            data[name] = decode(name, getattr(self, name)[row].item())
        if data["recompute"] != "full":
            data["recompute_method"] = data["recompute_num_layers"] = None
        return Recipe.build(data)

    @classmethod
    def of(cls, recipes: Sequence[Recipe]) -> Table:
        """A table of recipes that share one model, one cluster and one histogram of tokens over experts."""
        assert recipes, "a table needs at least one recipe"
        first = recipes[0]
        assert all(getattr(r, name) == getattr(first, name) for r in recipes[1:] for name in _SHARED), (
            f"recipes of one table share {', '.join(_SHARED)}"
        )
        columns = {name: [_encode(name, getattr(r, name)) for r in recipes] for name in COLUMNS}
        arrays = {name: np.asarray(values, dtype=_dtype(name)) for name, values in columns.items()}
        return cls(first.model, first.cluster, **arrays, moe_tokens_per_expert=first.moe_tokens_per_expert)

    @classmethod
    def product(cls, base: Recipe, axes: Mapping[str, Sequence[Any]]) -> Table:
        """Every combination of the axes' values (words or numbers), all else as in ``base``."""
        values = {
            name: np.asarray([_encode(name, v) for v in axes[name]], dtype=_dtype(name)) for name in axes
        }
        mesh = np.meshgrid(*values.values(), indexing="ij") if values else []
        grid = {name: column.ravel() for name, column in zip(values, mesh, strict=True)}
        n = len(next(iter(grid.values()))) if grid else 1
        columns = {
            name: grid[name]
            if name in grid
            else np.full(n, _encode(name, getattr(base, name)), dtype=_dtype(name))
            for name in COLUMNS
        }
        return cls(base.model, base.cluster, **columns, moe_tokens_per_expert=base.moe_tokens_per_expert)


_SHARED = ("model", "cluster", "moe_tokens_per_expert")
COLUMNS: tuple[str, ...] = tuple(f.name for f in fields(Table) if f.name not in _SHARED)
_BOOLS = {f.name for f in fields(Table) if f.type == "Bools"}
_FLOATS = {f.name for f in fields(Table) if f.type == "Floats"}


def _dtype(name: str) -> npt.DTypeLike:
    return np.bool_ if name in _BOOLS else np.float64 if name in _FLOATS else np.int64


def _encode(name: str, value: Any) -> Any:
    if name == "recompute_modules":
        return sum(1 << RECOMPUTE_MODULES.index(word) for word in value)
    if name == "pipeline_model_parallel_layout":
        return code_of(value)
    if value is None:
        return 0
    if name in WORDS:
        return WORDS[name].index(value)
    return value


def decode(name: str, value: Any) -> Any:
    """What the entry ``value`` of column ``name`` stands for: a word, words, a number, or None for unset."""
    if name == "recompute_modules":
        return tuple(word for i, word in enumerate(RECOMPUTE_MODULES) if value >> i & 1)
    if name == "pipeline_model_parallel_layout":
        return text_of(value)
    if name in WORDS:
        return WORDS[name][value]
    if name in (
        "dp_shard_size",
        "num_layers_in_first_pipeline_stage",
        "num_layers_in_last_pipeline_stage",
        "moe_expert_capacity_factor",
    ):
        return value or None
    return value
