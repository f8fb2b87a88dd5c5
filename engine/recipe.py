"""``Recipe``: one full training configuration. Field names are the field's own short words.

A recipe is complete: model, cluster and every knob that the engine prices. Whether it is *legal* is
the business of :mod:`shardwise.engine.legality`; this module only refuses what has no meaning
(a size below 1, an unknown word).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from shardwise.engine.cluster import Cluster, Precision
from shardwise.engine.errors import ConfigError
from shardwise.engine.layout_string import canonical_layout
from shardwise.engine.model import Model
from shardwise.engine.spec import Spec

RecipePrecision = Literal["bf16", "fp16", "fp8-delayed", "fp8-tensorwise", "fp8-blockwise", "mxfp8", "nvfp4"]
MAX_SIZE = 1_000_000_000
"""Largest value of any integer field: products of a few of them stay far from overflow."""
NEWEST_SOFTWARE = 2026.6
"""Release date, in years, of the newest software among the measured cases; time gains nothing past it."""
Size = Annotated[int, Field(gt=0, le=MAX_SIZE)]
"""A count, from 1."""

DpSharding = Literal["none", "zero1", "zero2", "fsdp", "hsdp"]
Recompute = Literal["none", "selective", "full"]
RecomputeModule = Literal["core_attn", "mlp", "moe", "moe_act", "layernorm", "mla_up_proj", "shared_experts"]
Dispatcher = Literal["alltoall", "allgather", "deepep", "hybridep"]

PRECISIONS: tuple[str, ...] = RecipePrecision.__args__  # type: ignore[attr-defined]
DP_SHARDINGS: tuple[str, ...] = DpSharding.__args__  # type: ignore[attr-defined]
RECOMPUTES: tuple[str, ...] = Recompute.__args__  # type: ignore[attr-defined]
RECOMPUTE_MODULES: tuple[str, ...] = RecomputeModule.__args__  # type: ignore[attr-defined]
DISPATCHERS: tuple[str, ...] = Dispatcher.__args__  # type: ignore[attr-defined]
PipelineSchedule = Literal["1f1b", "gpipe", "zb1p", "zbv", "dualpipev"]
SCHEDULES: tuple[str, ...] = PipelineSchedule.__args__  # type: ignore[attr-defined]
V_SHAPED = ("zbv", "dualpipev")
"""Schedules of two chunks a rank, there and back: rank ``r`` holds chunks ``r`` and ``2*pp - 1 - r``."""
Framework = Literal["megatron-core", "torchtitan", "nanotron", "deepspeed", "maxtext", "pytorch"]
FRAMEWORKS: tuple[str, ...] = Framework.__args__  # type: ignore[attr-defined]
TransformerImpl = Literal["transformer_engine", "local"]
TRANSFORMER_IMPLS: tuple[str, ...] = TransformerImpl.__args__  # type: ignore[attr-defined]
CROSS_ENTROPY_IMPLS: tuple[str, ...] = ("native", "te", "linear")
OPTIMIZERS: tuple[str, ...] = ("adam", "sgd", "muon")
STATE_DTYPES: tuple[str, ...] = ("fp32", "bf16", "fp16", "fp8")
MAIN_PARAMS_DTYPES: tuple[str, ...] = ("fp32", "fp16", "bf16")
CUDA_GRAPH_SCOPES: tuple[str, ...] = ("layer", "attn", "moe_router", "full_iteration")
CP_COMM_TYPES: tuple[str, ...] = ("p2p", "a2a", "all_gather")

MATRIX_FORMAT: dict[str, Precision] = {
    "bf16": "bf16",
    "fp16": "fp16",
    "fp8-delayed": "fp8",
    "fp8-tensorwise": "fp8",
    "fp8-blockwise": "fp8",
    "mxfp8": "mxfp8",
    "nvfp4": "fp4",
}
"""Recipe precision -> the matrix-unit format that its large GEMMs run in (a key of ``GPU.peak_flops``)."""

RECOMPUTE_DETAILS = ("recompute_method", "recompute_num_layers", "recompute_modules")
"""Fields that only mean something beside ``recompute``."""
PIPELINE_SPLIT = (
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
    "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage",
    "pipeline_model_parallel_layout",
)
"""Fields that together say how layers are spread over the pipeline's stages."""

_PRECISION_ALIASES = {
    "fp8": "fp8-tensorwise",
    "fp8-current": "fp8-tensorwise",
    "fp4": "nvfp4",
    "bfloat16": "bf16",
}
_SHARDING_ALIASES = {"zero-1": "zero1", "zero-2": "zero2", "zero3": "fsdp", "zero-3": "fsdp", "ddp": "none"}


class Recipe(Spec):
    """One full training configuration. Sizes are counts; ``gbs`` and ``mbs`` count sequences."""

    model: Model
    cluster: Cluster

    tp: Size = 1
    """Tensor parallel size."""
    pp: Size = 1
    """Pipeline parallel size."""
    vpp: Size = 1
    """Virtual pipeline stages per rank; 1 = no interleaving."""
    cp: Size = 1
    """Context parallel size."""
    ep: Size = 1
    """Expert parallel size."""
    etp: Size = 1
    """Expert tensor parallel size. Unset: ``tp`` for a MoE model, as Megatron-LM does."""
    mbs: Size = 1
    """Micro batch size, sequences."""
    gbs: Size
    """Global batch size, sequences."""
    seq_len: Size
    """Sequence length, tokens."""

    sequence_parallel: bool = False
    """Shard norms and residuals along the sequence over ``tp``. Unset: on when ``tp > 1``."""
    framework: Framework = "megatron-core"
    """Whose modules run: decides what a layer saves, how the loss is computed, which buffers there are."""
    transformer_impl: TransformerImpl = "transformer_engine"
    """``megatron-core`` only: Transformer Engine's modules, or Megatron's own (``local``)."""
    dp_sharding: DpSharding = "zero1"
    """``none`` (DDP), ``zero1`` (distributed optimizer), ``zero2``, ``fsdp`` (ZeRO-3), ``hsdp``."""
    dp_shard_size: Size | None = None
    """Ranks that share one copy of the sharded state (``hsdp``); None = all of dp x cp."""
    fsdp_reshard_after_forward: bool = True
    """``fsdp``/``hsdp``: free gathered parameters after the forward pass."""

    pp_schedule: PipelineSchedule = "1f1b"
    """With ``vpp > 1`` 1F1B and ZB1P are interleaved; ``zbv`` and ``dualpipev`` have two chunks in a V."""
    num_layers_in_first_pipeline_stage: Size | None = None
    num_layers_in_last_pipeline_stage: Size | None = None
    account_for_embedding_in_pipeline_split: bool = False
    account_for_loss_in_pipeline_split: bool = False
    pipeline_model_parallel_layout: Annotated[str, Field(max_length=2000)] | None = None
    """Layers of every chunk, e.g. ``Et*3|(tt|)*29m|L``, instead of the four fields above."""

    recompute: Recompute = "none"
    recompute_method: Literal["uniform", "block"] | None = None
    """``full`` only. Unset: ``uniform``."""
    recompute_num_layers: int | None = Field(default=None, ge=0, le=MAX_SIZE)
    """``full`` only: layers per checkpoint (uniform) or recomputed layers per stage or chunk (block)."""
    recompute_modules: tuple[RecomputeModule, ...] = ()
    """``selective`` only. Unset: ``core_attn``."""

    precision: RecipePrecision = "bf16"
    main_grads_dtype: Literal["fp32", "bf16"] = "fp32"
    main_params_dtype: Literal["fp32", "fp16", "bf16"] = "fp32"
    """Master weights; below FP32 Megatron needs its precision-aware optimizer. ``bf16``: there are none,
    the optimizer updates the 16-bit weights themselves."""
    optimizer_state_dtype: Literal["fp32", "bf16", "fp16", "fp8"] = "fp32"
    """Adam moments; below FP32 Megatron needs its precision-aware optimizer."""
    optimizer: Literal["adam", "sgd", "muon"] = "adam"
    optimizer_offload_fraction: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of the parameters whose moments live, and are updated, in the host's memory."""
    cpu_offloading_num_layers: int = Field(default=0, ge=0, le=MAX_SIZE)
    """Layers whose saved activations wait in the host's memory; 0 = none."""
    fp8_param_gather: bool = False
    """Gather parameters in FP8 and keep no BF16 copy."""

    overlap_grad_reduce: bool = True
    overlap_param_gather: bool = True
    tp_comm_overlap: bool = False
    overlap_p2p_comm: bool = True
    """Interleaved schedule only."""
    cp_comm_type: Literal["p2p", "a2a", "all_gather"] = "p2p"
    moe_token_dispatcher: Dispatcher = "alltoall"
    overlap_moe_expert_parallel_comm: bool = False
    """Hide the expert all-to-all behind the other micro-batch (1F1B) of an interleaved schedule."""
    moe_imbalance: float = Field(default=1.0, ge=1.0, le=1024.0)
    """Tokens of the fullest expert-parallel rank over the mean; 1 = balanced."""
    moe_tokens_per_expert: tuple[Annotated[float, Field(ge=0.0, le=1e15)], ...] = ()
    """Histogram of tokens over the experts, in any unit; instead of ``moe_imbalance``. Empty = none."""
    moe_expert_capacity_factor: float | None = Field(default=None, gt=0.0)
    """Each expert drops tokens above, and pads up to, this multiple of the mean; None = dropless."""
    attention_backend: Literal["flash", "unfused"] = "flash"
    cross_entropy_fusion: bool = False
    cross_entropy_fusion_impl: Literal["native", "te", "linear"] = "native"
    """``native``: compiled; ``te``: Transformer Engine's; ``linear``: in chunks, with the output head."""
    loss_parallel: bool = True
    """The loss reads logits as they are sharded over ``tp``; off: it gathers the whole vocabulary first."""
    norm_fusion: bool = True
    """Norms as one kernel; off: as PyTorch operators, which keep their FP32 intermediates."""
    cuda_graphs: bool = False
    cuda_graph_scope: Literal["layer", "attn", "moe_router", "full_iteration"] = "layer"
    """What is captured: whole layers, attention and router, the router alone, or the iteration."""
    torch_compile: bool = False
    """``torch.compile`` of the layers (torchtitan): element-wise chains save only their inputs."""
    expandable_segments: bool = False
    """``PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True``: the allocator fragments hardly."""
    software_year: float = Field(default=NEWEST_SOFTWARE, ge=2018.0, le=2040.0)
    """When the framework's release came out; the newest that the engine was calibrated on, unless set."""
    reserved_by_other_gib: float = Field(default=0.0, ge=0.0, le=1e6)
    """Device memory that something else on the GPU holds (a rollout engine, a frozen model), GiB."""

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, data: Any) -> Any:
        """Fill what Megatron-LM derives from other fields, so that a recipe is always explicit."""
        if not isinstance(data, dict):
            return data
        filled = {key: value for key, value in data.items() if value is not None}
        tp = filled.get("tp", 1)
        model = filled.get("model")
        num_experts = (
            model.get("num_experts") if isinstance(model, dict) else getattr(model, "num_experts", None)
        )
        filled.setdefault("etp", tp if num_experts else 1)
        filled.setdefault("sequence_parallel", isinstance(tp, int) and tp > 1)
        if filled.get("recompute") == "full":
            filled.setdefault("recompute_method", "uniform")
            filled.setdefault("recompute_num_layers", 1)
        if filled.get("recompute") == "selective" and not filled.get("recompute_modules"):
            filled["recompute_modules"] = ("core_attn",)
        return filled

    @field_validator("pipeline_model_parallel_layout")
    @classmethod
    def _layout(cls, value: str | None) -> str | None:
        if value is None:
            return None
        try:
            return canonical_layout(value)
        except ConfigError as err:
            raise ValueError(str(err)) from err

    @field_validator("precision", mode="before")
    @classmethod
    def _precision_alias(cls, value: object) -> object:
        return _PRECISION_ALIASES.get(value, value) if isinstance(value, str) else value

    @field_validator("dp_sharding", mode="before")
    @classmethod
    def _sharding_alias(cls, value: object) -> object:
        return _SHARDING_ALIASES.get(value, value) if isinstance(value, str) else value

    @field_validator("recompute_modules", mode="before")
    @classmethod
    def _modules(cls, value: object) -> object:
        items = value.split(",") if isinstance(value, str) else value
        if isinstance(items, (list, tuple, set)):
            return tuple(sorted({str(item).strip() for item in items if str(item).strip()}))
        return items

    @field_validator("moe_tokens_per_expert", mode="before")
    @classmethod
    def _histogram(cls, value: object) -> object:
        return tuple(float(part) for part in value.split(",")) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _histogram_fits(self) -> Self:
        counts, experts = self.moe_tokens_per_expert, self.model.num_experts or 0
        if not counts:
            return self
        if len(counts) != experts:
            raise ValueError(
                f"moe_tokens_per_expert has {len(counts)} entries; needs one per expert, {experts} for "
                f"{self.model.name}"
            )
        if sum(counts) <= 0:
            raise ValueError("moe_tokens_per_expert: at least one expert needs tokens")
        if self.moe_imbalance != 1.0:
            raise ValueError("moe_imbalance and moe_tokens_per_expert exclude each other; give one")
        return self

    @model_validator(mode="after")
    def _recompute_words_fit(self) -> Self:
        if self.recompute != "full" and (self.recompute_method or self.recompute_num_layers is not None):
            raise ValueError(
                f"recompute_method and recompute_num_layers need recompute=full, not {self.recompute!r}"
            )
        if self.recompute != "selective" and self.recompute_modules:
            raise ValueError(f"recompute_modules needs recompute=selective, not {self.recompute!r}")
        return self

    @property
    def world_size(self) -> int:
        """GPUs of the cluster, all of which the recipe uses."""
        return self.cluster.world_size

    @property
    def dp(self) -> int:
        """Data parallel size ``world / (tp*pp*cp)``; 0 when it does not divide (see ``legality``)."""
        return _exact(self.world_size, self.tp * self.pp * self.cp)

    @property
    def edp(self) -> int:
        """Expert data parallel size ``world / (etp*ep*pp)``; 0 when it does not divide."""
        return _exact(self.world_size, self.etp * self.ep * self.pp)

    @property
    def num_microbatches(self) -> int:
        """Micro-batches per step and pipeline; 0 when the batch does not divide."""
        return _exact(self.gbs, self.mbs * self.dp) if self.dp else 0


def _exact(whole: int, part: int) -> int:
    return whole // part if part and whole % part == 0 else 0
