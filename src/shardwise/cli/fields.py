"""Every field of a recipe as a command-line option: one table, from which all commands are built.

The table repeats the names of ``Recipe.model_fields`` instead of importing them because the command
line must start without pydantic; a test holds the two against each other, so a new field of the
recipe cannot be forgotten here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["int", "float", "flag", "word", "text"]


@dataclass(frozen=True, slots=True)
class FieldOption:
    """One recipe field as it appears on the command line."""

    name: str
    """Field name of the recipe; the option is the same with dashes."""
    kind: Kind
    help: str
    panel: str
    """Heading in ``--help``."""
    words: tuple[str, ...] = ()
    """Allowed words, shown in ``--help``; the engine is the one that checks them."""
    also: tuple[str, ...] = ()
    """Other spellings of the option."""

    @property
    def flag(self) -> str:
        """The option's name, e.g. ``--seq-len``."""
        return "--" + self.name.replace("_", "-")

    @property
    def declaration(self) -> list[str]:
        """Names as typer takes them; a flag gets its ``--no-`` twin."""
        first = f"{self.flag}/--no-{self.flag[2:]}" if self.kind == "flag" else self.flag
        return [first, *self.also]


WHAT = "Recipe: what and where"
PARALLEL = "Recipe: parallelism"
BATCH = "Recipe: batch"
PIPELINE = "Recipe: pipeline"
RECOMPUTE = "Recipe: recomputation"
PRECISION = "Recipe: precision and optimizer"
OVERLAP = "Recipe: overlap, experts, kernels"

FIELDS: tuple[FieldOption, ...] = (
    FieldOption("model", "text", "Catalog name, Hugging Face config.json, or YAML file.", WHAT),
    FieldOption(
        "cluster",
        "text",
        "GPU:NODESxGPUS_PER_NODE (mi355x:4x8), '32 MI355X', or a YAML file.",
        WHAT,
        also=("--gpus",),
    ),
    FieldOption("tp", "int", "Tensor parallel size.", PARALLEL),
    FieldOption("pp", "int", "Pipeline parallel size.", PARALLEL),
    FieldOption("vpp", "int", "Virtual pipeline stages per rank.", PARALLEL),
    FieldOption("cp", "int", "Context parallel size.", PARALLEL),
    FieldOption("ep", "int", "Expert parallel size.", PARALLEL),
    FieldOption("etp", "int", "Expert tensor parallel size (unset: tp).", PARALLEL),
    FieldOption("sequence_parallel", "flag", "Shard norms and residuals over tp.", PARALLEL),
    FieldOption(
        "framework",
        "word",
        "Whose modules run.",
        WHAT,
        words=("megatron-core", "torchtitan", "nanotron", "deepspeed", "maxtext", "pytorch"),
    ),
    FieldOption(
        "transformer_impl", "word", "Megatron's layers.", WHAT, words=("transformer_engine", "local")
    ),
    FieldOption(
        "dp_sharding",
        "word",
        "What data parallel ranks shard.",
        PARALLEL,
        words=("none", "zero1", "zero2", "fsdp", "hsdp"),
    ),
    FieldOption("dp_shard_size", "int", "Ranks per sharding group (hsdp).", PARALLEL),
    FieldOption("fsdp_reshard_after_forward", "flag", "Free gathered parameters after forward.", PARALLEL),
    FieldOption("mbs", "int", "Micro batch size, sequences.", BATCH),
    FieldOption("gbs", "int", "Global batch size, sequences.", BATCH),
    FieldOption("seq_len", "int", "Sequence length, tokens.", BATCH),
    FieldOption(
        "pp_schedule",
        "word",
        "Pipeline schedule.",
        PIPELINE,
        words=("1f1b", "gpipe", "zb1p", "zbv", "dualpipev"),
    ),
    FieldOption("num_layers_in_first_pipeline_stage", "int", "Decoder layers of the first stage.", PIPELINE),
    FieldOption("num_layers_in_last_pipeline_stage", "int", "Decoder layers of the last stage.", PIPELINE),
    FieldOption(
        "account_for_embedding_in_pipeline_split", "flag", "Count the embedding as one layer.", PIPELINE
    ),
    FieldOption("account_for_loss_in_pipeline_split", "flag", "Count the loss as one layer.", PIPELINE),
    FieldOption(
        "pipeline_model_parallel_layout", "text", "Layers of every chunk, e.g. 'Et|(tt|)*30L'.", PIPELINE
    ),
    FieldOption("overlap_p2p_comm", "flag", "Overlap sends between stages (interleaved).", PIPELINE),
    FieldOption(
        "recompute",
        "word",
        "Activation recomputation.",
        RECOMPUTE,
        words=("none", "selective", "full"),
    ),
    FieldOption("recompute_method", "word", "With full.", RECOMPUTE, words=("uniform", "block")),
    FieldOption("recompute_num_layers", "int", "With full: layers per checkpoint or block.", RECOMPUTE),
    FieldOption(
        "recompute_modules",
        "text",
        "With selective: comma-separated, e.g. core_attn,moe_act.",
        RECOMPUTE,
    ),
    FieldOption(
        "precision",
        "word",
        "Number format of the matrix multiplications.",
        PRECISION,
        words=("bf16", "fp16", "fp8-delayed", "fp8-tensorwise", "fp8-blockwise", "mxfp8", "nvfp4"),
    ),
    FieldOption("main_grads_dtype", "word", "Main gradients.", PRECISION, words=("fp32", "bf16")),
    FieldOption("main_params_dtype", "word", "Master weights.", PRECISION, words=("fp32", "fp16", "bf16")),
    FieldOption(
        "optimizer_state_dtype", "word", "Adam moments.", PRECISION, words=("fp32", "bf16", "fp16", "fp8")
    ),
    FieldOption("optimizer", "word", "Optimizer.", PRECISION, words=("adam", "sgd", "muon")),
    FieldOption("optimizer_offload_fraction", "float", "Share of it kept on the host.", PRECISION),
    FieldOption("cpu_offloading_num_layers", "int", "Layers with activations on the host.", RECOMPUTE),
    FieldOption("fp8_param_gather", "flag", "Gather parameters in FP8.", PRECISION),
    FieldOption("overlap_grad_reduce", "flag", "Gradient reduction under backward.", OVERLAP),
    FieldOption("overlap_param_gather", "flag", "Parameter gathering under forward.", OVERLAP),
    FieldOption("tp_comm_overlap", "flag", "TP communication under GEMMs.", OVERLAP),
    FieldOption(
        "cp_comm_type", "word", "Context parallel exchange.", OVERLAP, words=("p2p", "a2a", "all_gather")
    ),
    FieldOption(
        "moe_token_dispatcher",
        "word",
        "How tokens travel to experts.",
        OVERLAP,
        words=("alltoall", "allgather", "deepep", "hybridep"),
    ),
    FieldOption(
        "overlap_moe_expert_parallel_comm", "flag", "Expert all-to-all under the other micro-batch.", OVERLAP
    ),
    FieldOption("moe_imbalance", "float", "Tokens of the fullest expert rank over the mean.", OVERLAP),
    FieldOption("moe_expert_capacity_factor", "float", "Unset: dropless.", OVERLAP),
    FieldOption("attention_backend", "word", "Attention kernel.", OVERLAP, words=("flash", "unfused")),
    FieldOption("moe_tokens_per_expert", "text", "Histogram, comma-separated.", OVERLAP),
    FieldOption("cross_entropy_fusion", "flag", "Fused cross-entropy.", OVERLAP),
    FieldOption("cross_entropy_fusion_impl", "word", "Which.", OVERLAP, words=("native", "te", "linear")),
    FieldOption("loss_parallel", "flag", "Loss over logits sharded by tp.", OVERLAP),
    FieldOption("norm_fusion", "flag", "Norms as one kernel.", OVERLAP),
    FieldOption("cuda_graphs", "flag", "CUDA / HIP graphs.", OVERLAP),
    FieldOption(
        "cuda_graph_scope",
        "word",
        "What graphs capture.",
        OVERLAP,
        words=("layer", "attn", "moe_router", "full_iteration"),
    ),
    FieldOption("software_year", "float", "Date of the framework's release, e.g. 2026.5.", WHAT),
    FieldOption("torch_compile", "flag", "torch.compile of the layers.", OVERLAP),
    FieldOption("expandable_segments", "flag", "Allocator with expandable segments.", OVERLAP),
    FieldOption("reserved_by_other_gib", "float", "Device memory others hold, GiB.", OVERLAP),
)
"""In the order of ``--help``."""
