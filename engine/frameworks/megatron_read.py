"""Megatron arguments as recipe fields: Megatron-LM's flags and Primus's overrides alike.

What Megatron rewrites in silence is rewritten here too and said in a note; what decides whether the
run starts or fits, but that no recipe field stands for, is named in a note and kept as unknown.
"""

from __future__ import annotations

from typing import Any, Literal

from shardwise.engine.errors import ConfigError, UnsupportedError
from shardwise.engine.frameworks.arguments import Arguments
from shardwise.engine.frameworks.megatron_write import FP8
from shardwise.engine.layout_string import canonical_layout, parse_layout
from shardwise.engine.model import Model
from shardwise.engine.recipe import CROSS_ENTROPY_IMPLS, OPTIMIZERS, RECOMPUTE_MODULES, TRANSFORMER_IMPLS

DECISIVE = (
    "hierarchical_context_parallel_sizes", "hybrid_context_parallel",
    "microbatch_group_size_per_virtual_pipeline_stage",
    "defer_embedding_wgrad_compute", "delay_wgrad_compute", "cpu_offloading", "cpu_offloading_num_layers",
    "fine_grained_activation_offloading", "distribute_saved_activations",
    "moe_shared_expert_overlap", "moe_pad_expert_input_to_capacity", "moe_layer_recompute", "moe_extended_tp",
    "decoder_pipeline_manual_split_list", "recompute_layer_ids", "patch_primus_pipeline", "patch_zero_bubble",
    "patch_moe_overlap", "use_tp_pp_dp_mapping", "tensor_parallel_num_weight_shards",
    "expert_tensor_parallel_num_weight_shards", "first_last_layers_bf16", "fp32_residual_connection",
    "rampup_batch_size", "step_batch_size_schedule", "decrease_batch_size_if_needed", "use_nccl_ub",
    "turbo_sync_free_moe_stage", "use_turbo_mega_moe", "enable_odc",
    "overlap_param_gather_with_optimizer_step",
    "sink_sliding_window", "use_sink_attention",
)  # fmt: skip
"""Arguments that decide legality, memory or speed and that no recipe field stands for."""

DERIVED = (
    "ckpt_format", "reuse_grad_buf_for_mxfp8_param_ag", "outer_dp_sharding_strategy", "moe_grouped_gemm",
    "moe_router_dtype", "cuda_graph_modules", "check_for_nan_in_loss_and_grad",
    "make_vocab_size_divisible_by", "use_flash_attn", "tokenizer_type",
    "accumulate_allreduce_grads_in_fp32", "enable_primus_turbo", "apply_rope_fusion",
    "hidden_dropout", "attention_dropout",
)  # fmt: skip
"""Arguments whose effect other fields already carry, or that no projection depends on."""

_HYBRID = ("hybrid_layer_pattern", "hybrid_override_pattern", "is_hybrid_model")


class RecipeReader:
    """Reads the recipe fields out of ``args`` for ``model`` on ``world`` GPUs."""

    def __init__(self, args: Arguments, model: Model, world: int, framework: str) -> None:
        self.args = args
        self.model = model
        self.world = world
        self.framework = framework
        self.notes: list[str] = []

    def read(self) -> dict[str, Any]:
        """The fields; remarks gather in ``notes``. Raises ``ConfigError`` on a value that cannot be."""
        for key in _HYBRID:
            if self.args.get(key):
                raise UnsupportedError(f"{key}: hybrid (state-space) models are not modelled", field=key)
        fields = self._sizes()
        fields |= self._pipeline(fields["pp"])
        fields |= self._sharding(fields)
        fields |= self._precision()
        fields |= self._recompute()
        fields |= self._moe()
        fields |= self._kernels()
        self.args.ignore(DERIVED)
        if self.model.attention_sink:
            # Primus's own words for what the model says anyway.
            self.args.ignore(["use_sink_attention", "sink_sliding_window"])
        for key in DECISIVE:
            value = self.args.given_values.get(key)
            neutral = "1" if key.endswith("num_weight_shards") else "0"
            if value is None or str(value).lower() in ("false", "none", "[]", neutral):
                self.args.ignore([key])
            elif key not in self.args.asked:
                self.notes.append(
                    f"{key} = {value!r}: bears on legality, memory or speed and is not modelled"
                )
        return fields

    def _sizes(self) -> dict[str, Any]:
        args = self.args
        tp = args.count("tensor_model_parallel_size") or 1
        pp = args.count("pipeline_model_parallel_size") or 1
        cp = args.count("context_parallel_size") or 1
        mbs = args.count("micro_batch_size")
        seq_len = args.count("seq_length") or args.count("encoder_seq_length")
        if mbs is None:
            raise ConfigError(
                f"micro_batch_size: the file does not give it and {self.framework} needs it", field="mbs"
            )
        if seq_len is None:
            raise ConfigError(
                f"seq_length: the file does not give it and {self.framework} needs it", field="seq_len"
            )
        gbs = args.count("global_batch_size")
        if gbs is None:
            gbs = mbs * max(1, self.world // (tp * pp * cp))
            self.notes.append(
                f"global_batch_size: not given; {self.framework} takes micro_batch_size x dp = {gbs}"
            )
        sequence_parallel = args.flag("sequence_parallel")
        if sequence_parallel and tp == 1:
            if args.given("sequence_parallel"):
                self.notes.append("sequence_parallel: Megatron turns it off at tensor_model_parallel_size=1")
            sequence_parallel = False
        fields: dict[str, Any] = {"tp": tp, "pp": pp, "cp": cp, "mbs": mbs, "gbs": gbs, "seq_len": seq_len}
        fields["sequence_parallel"] = sequence_parallel
        ep, etp = args.count("expert_model_parallel_size"), args.count("expert_tensor_parallel_size")
        if self.model.is_moe:
            fields |= {"ep": ep or 1, "etp": etp or tp}
            if etp is None and tp > 1:
                self.notes.append(
                    f"expert_tensor_parallel_size: not given; Megatron takes tensor parallel size = {tp}"
                )
        else:
            fields |= {"ep": ep or 1, "etp": etp or 1}
        fields["cp_comm_type"] = self._cp_comm_type()
        fields["tp_comm_overlap"] = args.flag("tp_comm_overlap")
        return fields

    def _cp_comm_type(self) -> str:
        words = {
            word.replace("allgather", "all_gather") for word in self.args.words("cp_comm_type") or ["p2p"]
        }
        if len(words) == 1 and (word := next(iter(words))) in ("p2p", "a2a", "all_gather"):
            return word
        self.notes.append(
            f"cp_comm_type = {' '.join(sorted(words))}: only p2p, a2a or all_gather; priced as p2p"
        )
        return "p2p"

    def _pipeline(self, pp: int) -> dict[str, Any]:
        args = self.args
        fields: dict[str, Any] = {
            "num_layers_in_first_pipeline_stage": args.count("decoder_first_pipeline_num_layers"),
            "num_layers_in_last_pipeline_stage": args.count("decoder_last_pipeline_num_layers"),
            "account_for_embedding_in_pipeline_split": args.flag("account_for_embedding_in_pipeline_split"),
            "account_for_loss_in_pipeline_split": args.flag("account_for_loss_in_pipeline_split"),
            "overlap_p2p_comm": args.flag("overlap_p2p_comm"),
        }
        vpp = args.count("num_virtual_stages_per_pipeline_rank") or args.count(
            "virtual_pipeline_model_parallel_size"
        )
        per_chunk = args.count("num_layers_per_virtual_pipeline_stage")
        if vpp is None and per_chunk is not None:
            layers = self.model.num_layers
            layers += (
                fields["account_for_embedding_in_pipeline_split"]
                + fields["account_for_loss_in_pipeline_split"]
            )
            if layers % (pp * per_chunk):
                raise ConfigError(
                    f"num_layers_per_virtual_pipeline_stage = {per_chunk}: {layers} layers over "
                    f"pipeline_model_parallel_size={pp} do not divide by it",
                    field="num_layers_per_virtual_pipeline_stage",
                )
            vpp = layers // (pp * per_chunk)
        layout = args.get("pipeline_model_parallel_layout")
        if layout is not None:
            fields["pipeline_model_parallel_layout"] = canonical_layout(str(layout))
            chunks = len(parse_layout(str(layout)).chunks)
            if vpp is None and chunks % pp == 0:
                vpp = chunks // pp
            if chunks != pp * (vpp or 1):
                # Legality names the layout that this pipeline needs.
                self.notes.append(
                    f"pipeline_model_parallel_layout: {chunks} chunks, made for another pipeline than "
                    f"pp={pp}, vpp={vpp or 1}"
                )
        return {**fields, "vpp": vpp or 1}

    def _sharding(self, sizes: dict[str, Any]) -> dict[str, Any]:
        args = self.args
        fields: dict[str, Any] = {
            "dp_sharding": "zero1" if args.flag("use_distributed_optimizer") else "none",
            "overlap_grad_reduce": args.flag("overlap_grad_reduce"),
            "overlap_param_gather": args.flag("overlap_param_gather"),
        }
        strategies = ("no_shard", "optim", "optim_grads", "optim_grads_params")
        strategy = args.word("data_parallel_sharding_strategy", strategies)
        instances = args.count("num_distributed_optimizer_instances") or 1
        own_fsdp = args.flag("use_megatron_fsdp") or args.flag("use_custom_fsdp")
        if args.flag("use_torch_fsdp2"):
            reshard = args.given_values.get("torch_fsdp2_reshard_after_forward") is not False
            args.ignore(["torch_fsdp2_reshard_after_forward"])
            self.notes.append(
                "use_torch_fsdp2: priced as fsdp; its own limits (pp=1, ep=1, untied) are not checked"
            )
            return {**fields, "dp_sharding": "fsdp", "fsdp_reshard_after_forward": reshard}
        if own_fsdp:
            words = {
                "no_shard": "none",
                "optim": "zero1",
                "optim_grads": "zero2",
                "optim_grads_params": "fsdp",
            }
            fields["dp_sharding"] = words[strategy or "optim_grads_params"]
        if instances > 1:
            shard = max(1, self.world // (sizes["tp"] * sizes["pp"])) // instances
            if fields["dp_sharding"] == "fsdp" and shard:
                return {**fields, "dp_sharding": "hsdp", "dp_shard_size": shard}
            args.asked.discard("num_distributed_optimizer_instances")
            self.notes.append(
                f"num_distributed_optimizer_instances = {instances}: modelled with optim_grads_params only; "
                f"priced as {fields['dp_sharding']} over the whole data parallel group"
            )
        return fields

    def _precision(self) -> dict[str, Any]:
        args = self.args
        fp16, bf16 = args.flag("fp16"), args.flag("bf16")
        if args.given("fp16") and fp16 and not args.given("bf16"):
            bf16 = False
        if fp16 and bf16:
            raise ConfigError("fp16 and bf16 are both set; one of them is allowed", field="precision")
        if not fp16 and not bf16:
            self.notes.append("neither bf16 nor fp16 is set: FP32 training is not modelled; priced as bf16")
        fields: dict[str, Any] = {"precision": "fp16" if fp16 else "bf16"}
        fp8, fp4 = args.word("fp8"), args.word("fp4")
        recipe = args.word("fp8_recipe")
        gather = args.flag("fp8_param_gather")
        args.ignore(["fp4_recipe", "fp4_param_gather", "fp4_param"])
        if fp8 not in (None, "false"):
            by_recipe = {word: name for name, (_, word) in FP8.items()}
            recipe = recipe or "delayed"
            if recipe not in by_recipe:
                raise UnsupportedError(
                    f"fp8_recipe = {recipe!r}: allowed: {', '.join(sorted(by_recipe))}", field="fp8_recipe"
                )
            fields |= {"precision": by_recipe[recipe], "fp8_param_gather": gather}
        elif fp4 not in (None, "false"):
            gather = args.flag("fp4_param_gather") or args.flag("fp4_param")
            fields |= {"precision": "nvfp4", "fp8_param_gather": gather}
            kind = args.word("fp4_recipe") or "nvfp4"
            if kind != "nvfp4":
                self.notes.append(
                    f"fp4_recipe = {kind}: nvfp4 is the FP4 format that is modelled; priced as nvfp4"
                )
        return {**fields, **self._optimizer()}

    def _optimizer(self) -> dict[str, Any]:
        args = self.args
        optimizer = args.word("optimizer") or "adam"
        if optimizer not in OPTIMIZERS:
            args.asked.discard("optimizer")
            self.notes.append(f"optimizer = {optimizer}: adam, sgd and muon are modelled; priced as adam")
            optimizer = "adam"
        aware = args.flag("use_precision_aware_optimizer")
        names = ("main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
        grads, *moments = (args.word(name) or "fp32" for name in names)
        if not aware and {grads, *moments} != {"fp32"}:
            self.notes.append(
                "main_grads_dtype, exp_avg_dtype: no effect without use_precision_aware_optimizer"
            )
            grads, moments = "fp32", ["fp32", "fp32"]
        state = "fp32" if "fp32" in moments else moments[0]
        if set(moments) != {state}:
            self.notes.append(f"exp_avg_dtype, exp_avg_sq_dtype = {', '.join(moments)}: priced as {state}")
        if args.flag("grad_reduce_in_bf16") or args.word("megatron_fsdp_main_grads_dtype") == "bf16":
            grads = "bf16"
        master = args.word("main_params_dtype", ("fp32", "fp16"))
        offload = args.number("optimizer_offload_fraction")
        on_host = args.flag("optimizer_cpu_offload")
        return {
            "optimizer": optimizer,
            "main_grads_dtype": "bf16" if grads == "bf16" else "fp32",
            "optimizer_state_dtype": state,
            "main_params_dtype": master or "fp32",
            "optimizer_offload_fraction": (1.0 if offload is None else offload) if on_host else 0.0,
        }

    def _recompute(self) -> dict[str, Any]:
        args = self.args
        choice = args.word("recompute_granularity", ("full", "selective", "none"))
        method = args.word("recompute_method", ("uniform", "block", "none"))
        layers = args.integer("recompute_num_layers")
        modules = args.words("recompute_modules")
        if choice is None and args.flag("recompute_activations"):
            choice = "selective"
        if choice == "full":
            if layers is None or method is None:
                self.notes.append(
                    "recompute_granularity = full: method or number of layers not given; uniform and 1 here"
                )
            return {"recompute": "full", "recompute_method": method, "recompute_num_layers": layers}
        if choice == "selective":
            known = [word for word in modules or [] if word in RECOMPUTE_MODULES]
            lost = sorted(set(modules or []) - set(known))
            if lost:
                self.notes.append(
                    f"recompute_modules: {', '.join(lost)} not modelled; kept as stored activations"
                )
            return {"recompute": "selective", "recompute_modules": sorted(set(known))}
        return {
            "recompute": "none",
            "cpu_offloading_num_layers": args.integer("cpu_offloading_num_layers") or 0,
        }

    def _moe(self) -> dict[str, Any]:
        args = self.args
        names = ("allgather", "alltoall", "flex", "alltoall_seq")
        kind = args.word("moe_token_dispatcher_type", names)
        backend = args.word("moe_flex_dispatcher_backend") or "deepep"
        legacy_deepep, turbo = args.flag("moe_enable_deepep"), args.flag("use_turbo_deepep")
        overlap = args.flag("overlap_moe_expert_parallel_comm")
        factor = args.number("moe_expert_capacity_factor")
        if not self.model.is_moe:
            return {}
        dispatcher = kind or "allgather"
        if turbo or (legacy_deepep and kind == "flex"):
            dispatcher = "deepep"
        elif kind == "flex":
            if backend not in ("deepep", "hybridep"):
                self.notes.append(
                    f"moe_flex_dispatcher_backend = {backend}: not modelled; priced as hybridep"
                )
            dispatcher = "deepep" if backend == "deepep" else "hybridep"
        elif kind == "alltoall_seq":
            self.notes.append("moe_token_dispatcher_type = alltoall_seq: priced as alltoall")
            dispatcher = "alltoall"
        elif not args.given("moe_token_dispatcher_type") and dispatcher == "allgather":
            self.notes.append("moe_token_dispatcher_type: not given; Megatron takes allgather")
        return {
            "moe_token_dispatcher": dispatcher,
            "overlap_moe_expert_parallel_comm": overlap,
            "moe_expert_capacity_factor": factor,
        }

    def _kernels(self) -> dict[str, Any]:
        args = self.args
        backend = args.word("attention_backend") or "auto"
        backend = backend.rsplit(".", 1)[-1]
        if backend not in ("flash", "fused", "unfused", "local", "auto"):
            raise ConfigError(
                f"attention_backend = {backend!r}: allowed: flash, fused, unfused, local, auto",
                field="attention_backend",
            )
        kind: Literal["flash", "unfused"] = "unfused" if backend in ("unfused", "local") else "flash"
        graphs = args.word("cuda_graph_impl") is not None
        for key in ("enable_cuda_graph", "external_cuda_graph"):
            graphs |= args.flag(key)
        args.ignore(["cuda_graph_scope"])
        return {
            "attention_backend": kind,
            "cross_entropy_fusion": args.flag("cross_entropy_loss_fusion"),
            "cross_entropy_fusion_impl": args.word("cross_entropy_fusion_impl", CROSS_ENTROPY_IMPLS)
            or "native",
            "transformer_impl": args.word("transformer_impl", TRANSFORMER_IMPLS) or "transformer_engine",
            "cuda_graphs": graphs,
        }
