"""What expert parallelism, its dispatchers and its overlap ask for."""

from __future__ import annotations

import numpy as np

from shardwise.engine.legality.rule import Fix, Rule, common_divisors
from shardwise.engine.legality.suggest import change, nearest
from shardwise.engine.recipe import DISPATCHERS, Recipe
from shardwise.engine.table import Bools, Table

_FLEX = ("deepep", "hybridep")
_DISPATCHER, _OVERLAP = "moe_token_dispatcher", "overlap_moe_expert_parallel_comm"
_CONFIG = "megatron/core/transformer/transformer_config.py"
_TOKENS = "megatron/core/transformer/moe/token_dispatcher.py"


def _no_experts(table: Table) -> Bools:
    return np.asarray((table.ep > 1) & (not table.model.is_moe))


def _explain_no_experts(r: Recipe) -> Fix:
    return change(f"ep={r.ep} needs a model with experts; {r.model.name} is dense", ep=1)


def _experts(table: Table) -> Bools:
    return np.asarray((table.model.num_experts or 0) % table.ep != 0)


def _explain_experts(r: Recipe) -> Fix:
    experts = r.model.num_experts or 1
    what = f"ep={r.ep} does not divide num_experts={experts}"
    return nearest(what, _experts, r, {"ep": common_divisors(experts, r.world_size)})


def _tensor_parallel(table: Table) -> Bools:
    return np.asarray(table.model.is_moe & (table.tp > 1) & ~table.sequence_parallel)


def _explain_tensor_parallel(r: Recipe) -> Fix:
    return change(f"a MoE model with tp={r.tp} needs sequence_parallel=true", sequence_parallel=True)


def _bias(table: Table) -> Bools:
    return np.asarray((table.model.is_moe and table.model.add_bias_linear) & (table.etp > 1))


def _explain_bias(r: Recipe) -> Fix:
    return change(f"experts with biases (add_bias_linear=true) need etp=1, not etp={r.etp}", etp=1)


def _capacity(table: Table) -> Bools:
    return np.asarray(
        table.model.is_moe & (table.moe_expert_capacity_factor > 0) & table.is_word(_DISPATCHER, "deepep")
    )


def _explain_capacity(r: Recipe) -> Fix:
    what = (
        f"moe_expert_capacity_factor={r.moe_expert_capacity_factor} is not possible with {_DISPATCHER}=deepep"
    )
    return change(what, moe_expert_capacity_factor=None)


def _flex_group(table: Table) -> Bools:
    return np.asarray(table.model.is_moe & table.is_word(_DISPATCHER, *_FLEX) & (table.etp * table.ep == 1))


def _explain_flex_group(r: Recipe) -> Fix:
    what = f"{_DISPATCHER}={r.moe_token_dispatcher} needs etp*ep > 1, not 1"
    return change(what, moe_token_dispatcher="alltoall")


def supported_dispatchers(vendor: str, architecture: str) -> tuple[str, ...]:
    """Dispatchers that exist for a GPU; one whose architecture we do not know is given all of its vendor's.

    Megatron-Bridge (``training/flex_dispatcher_backend.py``) takes DeepEP and HybridEP from Ampere to
    Blackwell; on AMD, Primus-Turbo's DeepEP covers CDNA3 and CDNA4, and HybridEP does not exist.
    """
    if vendor == "nvidia" and architecture not in ("pascal", "volta", "turing"):
        return DISPATCHERS
    if vendor == "amd" and architecture not in ("cdna", "cdna1", "cdna2"):
        return tuple(word for word in DISPATCHERS if word != "hybridep")
    if vendor == "other":
        return DISPATCHERS
    return tuple(word for word in DISPATCHERS if word not in _FLEX)


def _hardware(table: Table) -> Bools:
    gpu = table.cluster.gpu
    usable = table.is_word(_DISPATCHER, *supported_dispatchers(gpu.vendor, gpu.architecture))
    return np.asarray(table.model.is_moe & ~usable)


def _explain_hardware(r: Recipe) -> Fix:
    gpu = r.cluster.gpu
    allowed = ", ".join(supported_dispatchers(gpu.vendor, gpu.architecture))
    what = f"{_DISPATCHER}={r.moe_token_dispatcher} does not exist for {gpu.name} (allowed: {allowed})"
    return change(what, moe_token_dispatcher="alltoall")


def _overlap_ranks(table: Table) -> Bools:
    return np.asarray(table.overlap_moe_expert_parallel_comm & ((table.ep == 1) | (not table.model.is_moe)))


def _explain_overlap_ranks(r: Recipe) -> Fix:
    return change(f"{_OVERLAP}=true needs a MoE model with ep > 1, not ep={r.ep}", **{_OVERLAP: False})


def _overlap_pipeline(table: Table) -> Bools:
    return np.asarray(table.overlap_moe_expert_parallel_comm & (table.pp > 1) & (table.vpp == 1))


def _explain_overlap_pipeline(r: Recipe) -> Fix:
    return change(f"{_OVERLAP}=true with pp={r.pp} needs vpp > 1, not vpp=1", **{_OVERLAP: False})


def _overlap_dispatcher(table: Table) -> Bools:
    return np.asarray(table.overlap_moe_expert_parallel_comm & table.is_word(_DISPATCHER, "allgather"))


def _explain_overlap_dispatcher(r: Recipe) -> Fix:
    what = f"{_OVERLAP}=true needs {_DISPATCHER} alltoall, deepep or hybridep, not allgather"
    return change(what, moe_token_dispatcher="alltoall")


def _overlap_recompute(table: Table) -> Bools:
    return np.asarray(
        table.overlap_moe_expert_parallel_comm
        & (table.is_word("recompute", "full") | table.recompute_module("moe"))
    )


def _explain_overlap_recompute(r: Recipe) -> Fix:
    what = f"{_OVERLAP}=true excludes recompute=full and recompute_modules moe"
    left = tuple(module for module in r.recompute_modules if module != "moe")
    if r.recompute == "selective" and left:
        return change(what, recompute_modules=left)
    return change(what, **{_OVERLAP: False})


def _overlap_mtp(table: Table) -> Bools:
    return np.asarray(table.overlap_moe_expert_parallel_comm & (table.model.mtp_num_layers > 1))


def _explain_overlap_mtp(r: Recipe) -> Fix:
    what = f"{_OVERLAP}=true takes at most one multi-token-prediction layer, not {r.model.mtp_num_layers}"
    return change(what, **{_OVERLAP: False})


RULES = (
    Rule("experts", "MC-80 megatron/training/arguments.py", ("ep",), _no_experts, _explain_no_experts),
    Rule("expert-count", f"MC-80 {_CONFIG}", ("ep",), _experts, _explain_experts),
    Rule(
        "expert-sequence-parallel",
        "MC-81 megatron/core/transformer/moe/moe_layer.py",
        ("sequence_parallel", "tp"),
        _tensor_parallel,
        _explain_tensor_parallel,
    ),
    Rule("expert-bias", f"MC-82 {_CONFIG}", ("etp",), _bias, _explain_bias),
    Rule(
        "expert-capacity",
        f"MC-84 {_TOKENS}",
        ("moe_expert_capacity_factor", _DISPATCHER),
        _capacity,
        _explain_capacity,
    ),
    Rule(
        "dispatcher-group", f"MC-87 {_TOKENS}", (_DISPATCHER, "ep", "etp"), _flex_group, _explain_flex_group
    ),
    Rule(
        "dispatcher-hardware",
        "MC-87, BR-07 megatron/bridge/training/flex_dispatcher_backend.py",
        (_DISPATCHER,),
        _hardware,
        _explain_hardware,
        framework="megatron-bridge",
    ),
    Rule("expert-overlap", f"MC-94 {_CONFIG}", (_OVERLAP, "ep"), _overlap_ranks, _explain_overlap_ranks),
    Rule(
        "expert-overlap-pipeline",
        f"MC-94 {_CONFIG}",
        (_OVERLAP, "pp", "vpp"),
        _overlap_pipeline,
        _explain_overlap_pipeline,
    ),
    Rule(
        "expert-overlap-dispatcher",
        f"MC-94 {_CONFIG}",
        (_OVERLAP, _DISPATCHER),
        _overlap_dispatcher,
        _explain_overlap_dispatcher,
    ),
    Rule(
        "expert-overlap-recompute",
        f"MC-94 {_CONFIG}",
        (_OVERLAP, "recompute", "recompute_modules"),
        _overlap_recompute,
        _explain_overlap_recompute,
    ),
    Rule("expert-overlap-mtp", f"MC-73 {_CONFIG}", (_OVERLAP,), _overlap_mtp, _explain_overlap_mtp),
)
