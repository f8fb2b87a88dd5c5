"""Megatron-LM: a launch script with one flag per line, and any script or line of flags read back."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from shardwise.engine import catalog
from shardwise.engine.errors import ConfigError
from shardwise.engine.frameworks.arguments import Arguments
from shardwise.engine.frameworks.base import Hints, Read, Written, slug
from shardwise.engine.frameworks.clusters import resolve_cluster
from shardwise.engine.frameworks.megatron_model import resolve_model
from shardwise.engine.frameworks.megatron_read import RecipeReader
from shardwise.engine.frameworks.megatron_write import MEGATRON_COMMIT, environment, sections
from shardwise.engine.frameworks.shell import read_script
from shardwise.engine.recipe import Recipe

NEGATIVE = {
    "add_bias_linear": "--disable-bias-linear",
    "overlap_p2p_comm": "--no-overlap-p2p-communication",
    "check_for_nan_in_loss_and_grad": "--no-check-for-nan-in-loss-and-grad",
}
"""Booleans that are on by default: Megatron only has a flag to turn them off."""

SPELLING = {"fp8": "--fp8-format", "fp4": "--fp4-format"}
"""Arguments whose flag is not their name."""

_READ_AS = {
    "fp8_format": "fp8",
    "fp4_format": "fp4",
    "norm_epsilon": "layernorm_epsilon",
    "disable_bias_linear": "!add_bias_linear",
    "no_add_bias_linear": "!add_bias_linear",
    "no_overlap_p2p_communication": "!overlap_p2p_comm",
    "no_check_for_nan_in_loss_and_grad": "!check_for_nan_in_loss_and_grad",
    "torch_fsdp2_no_reshard_after_forward": "!torch_fsdp2_reshard_after_forward",
    "virtual_pipeline_model_parallel_size": "num_virtual_stages_per_pipeline_rank",
}
"""Flag -> argument; ``!`` turns a boolean round."""

DEFAULTS: dict[str, Any] = {
    "overlap_p2p_comm": True,
    "add_bias_linear": True,
    "fp8_recipe": "delayed",
    "data_parallel_sharding_strategy": "optim_grads_params",
    "normalization": "LayerNorm",
    "position_embedding_type": "learned_absolute",
    "moe_layer_freq": 1,
    "moe_router_topk": 2,
    "moe_token_dispatcher_type": "allgather",
    "kv_lora_rank": 32,
    "qk_head_dim": 128,
    "qk_pos_emb_head_dim": 64,
    "v_head_dim": 128,
    "attention_backend": "auto",
    "optimizer": "adam",
}
"""What Megatron-LM takes for an absent flag, where that is neither off nor nothing (d98e8a64)."""

SWITCHES = frozenset({
    "swiglu", "untie_embeddings_and_output_weights", "disable_bias_linear", "add_qkv_bias", "qk_layernorm",
    "multi_latent_attention", "group_query_attention", "sequence_parallel", "use_distributed_optimizer",
    "use_megatron_fsdp", "use_custom_fsdp", "use_torch_fsdp2", "overlap_grad_reduce", "overlap_param_gather",
    "no_overlap_p2p_communication", "tp_comm_overlap", "bf16", "fp16", "fp8_param_gather", "fp4_param_gather",
    "use_precision_aware_optimizer", "grad_reduce_in_bf16", "recompute_activations", "moe_grouped_gemm",
    "moe_enable_deepep", "overlap_moe_expert_parallel_comm", "cross_entropy_loss_fusion", "enable_cuda_graph",
    "external_cuda_graph", "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split",
    "reuse_grad_buf_for_mxfp8_param_ag", "use_flash_attn", "mock_data", "no_check_for_nan_in_loss_and_grad",
})  # fmt: skip
"""Flags without a value; a word behind one belongs to nobody."""

_FLAG_IN_TEXT = re.compile(
    r"--(?:tensor-model-parallel-size|pipeline-model-parallel-size|num-layers|hidden-size|micro-batch-size|"
    r"seq-length|num-attention-heads|global-batch-size)\b"
)
_FLAG = re.compile(r"--([A-Za-z][\w.-]*)(?:=(.*))?", re.DOTALL)


class MegatronLM:
    """NVIDIA/Megatron-LM, driven by command-line flags."""

    name = "megatron-lm"

    def filename(self, recipe: Recipe) -> str:
        """``MODEL.megatron-lm.sh``."""
        return f"{slug(recipe.model.name)}.megatron-lm.sh"

    def recognises(self, text: str) -> bool:
        """Whether ``text`` has a flag that only Megatron's training scripts take."""
        return _FLAG_IN_TEXT.search(text) is not None

    def write(self, recipe: Recipe, header: str) -> Written:
        """The launch script of ``recipe``; data, tokenizer and learning rate come from the caller."""
        env = environment(recipe)
        groups = {title: flags(arguments) for title, arguments in sections(recipe).items()}
        lines = ["#!/usr/bin/env bash", header]
        lines.append(f"# Flags as NVIDIA/Megatron-LM@{MEGATRON_COMMIT} spells them. Run once per node with")
        lines.append(
            "# MASTER_ADDR and NODE_RANK set; data, tokenizer and learning rate follow as arguments."
        )
        lines.append("set -euo pipefail")
        lines += [f"export {key}={shlex.quote(value)}" for key, value in env.items()]
        lines += ["", "DISTRIBUTED_ARGS=("]
        lines += [f"  {word}" for word in _torchrun(recipe)] + [")"]
        for title, group in groups.items():
            lines += (
                [f"{title.upper()}_ARGS=("]
                + [f"  {' '.join(map(shlex.quote, flag))}" for flag in group]
                + [")"]
            )
        lines += ["", 'torchrun "${DISTRIBUTED_ARGS[@]}" pretrain_gpt.py \\']
        lines += [f'  "${{{title.upper()}_ARGS[@]}}" \\' for title in groups] + ['  "$@"', ""]
        words = [shlex.quote(word) for group in groups.values() for flag in group for word in flag]
        prefix = "".join(f"{key}={shlex.quote(value)} " for key, value in env.items())
        launch = f"{prefix}torchrun {' '.join(_torchrun(recipe))} pretrain_gpt.py {' '.join(words)}"
        return Written("\n".join(lines), launch, env)

    def read(self, text: str, path: Path | None, hints: Hints) -> Read:
        """The recipe that a script or a line of flags describes."""
        del path
        launcher, given, notes = parse_flags(text)
        nodes, per_node = launcher
        cluster, world, told = resolve_cluster(hints.cluster, nodes, per_node)
        args = Arguments(given, DEFAULTS)
        seq_len = args.count("seq_length") or 1
        base = catalog.model(hints.header_model) if hints.header_model else None
        spec, model, remarks = resolve_model(args, hints, base=base, complete=True, seq_len=seq_len)
        reader = RecipeReader(args, model, world, "Megatron-LM")
        fields = {"model": spec, "cluster": cluster, **reader.read()}
        return Read(fields, args.unknown(), (*notes, *told, *remarks, *reader.notes))


def flags(arguments: dict[str, Any]) -> list[list[str]]:
    """``arguments`` as flags, each with its values; what is off or unset has none."""
    out: list[list[str]] = []
    for key, value in arguments.items():
        flag = SPELLING.get(key, "--" + key.replace("_", "-"))
        if key in NEGATIVE:
            out += [] if value else [[NEGATIVE[key]]]
        elif value is True:
            out.append([flag])
        elif isinstance(value, list):
            out.append([flag, *map(str, value)])
        elif value is not None and value is not False:
            out.append([flag, str(value)])
    return out


def _torchrun(recipe: Recipe) -> list[str]:
    cluster = recipe.cluster
    return [
        f"--nnodes {cluster.num_nodes}",
        f"--nproc-per-node {cluster.gpus_per_node}",
        '--node-rank "${NODE_RANK:-0}"',
        '--master-addr "${MASTER_ADDR:-127.0.0.1}"',
        '--master-port "${MASTER_PORT:-29500}"',
    ]


def parse_flags(text: str) -> tuple[tuple[int | None, int | None], dict[str, Any], list[str]]:
    """``((nnodes, nproc_per_node), arguments, notes)`` of a script, a command or a bare line of flags.

    The command is the last one that runs a ``.py`` file or starts with a flag; without one, the words
    of all arrays and variables that hold flags count.
    """
    script = read_script(text)
    notes = ["the script has conditionals or loops: every branch was read"] if script.branches else []
    trainers = [
        words for words in script.commands if any(_is_program(word) for word in words) and _has_flags(words)
    ]
    bare = [word for words in script.commands if words[0].startswith("--") for word in words]
    if trainers:
        words = trainers[-1]
        if len(trainers) > 1:
            notes.append(f"the script starts {len(trainers)} programs: the last one was read")
    elif bare:
        words = bare
    else:
        held = [word for array in script.arrays.values() for word in array]
        held += [word for value in script.variables.values() if "--" in value for word in shlex.split(value)]
        words = held if _has_flags(held) else max(script.commands, key=len, default=[])
    split = next((i for i, word in enumerate(words) if _is_program(word)), -1)
    launcher = _to_arguments(words[: split + 1])
    given = _to_arguments(words[split + 1 :])
    nodes = _launcher_count(launcher, given, "nnodes", script.variables.get("NNODES"))
    variable = script.variables.get("GPUS_PER_NODE")
    per_node = _launcher_count(launcher, given, "nproc_per_node", variable)
    for key in ("node_rank", "master_addr", "master_port", "rdzv_backend", "rdzv_endpoint", "rdzv_id"):
        given.pop(key, None)
    if not given:
        raise ConfigError("file: no Megatron-LM flags such as --num-layers found in it", field="file")
    return (nodes, per_node), _renamed(given), notes


def _is_program(word: str) -> bool:
    return word.endswith(".py") and not word.startswith("-")


def _has_flags(words: list[str]) -> bool:
    return any(word.startswith("--") for word in words)


def _to_arguments(words: list[str]) -> dict[str, Any]:
    """Flags with the values behind them: True for none, a word for one, a list for more. The last wins."""
    found: dict[str, Any] = {}
    key = ""
    for word in words:
        match = _FLAG.fullmatch(word)
        if match:
            key = match.group(1).replace("-", "_")
            found[key] = True if match.group(2) is None else match.group(2)
        elif key and key not in SWITCHES and not (_is_program(word) and key.startswith("n")):
            held = found[key]
            found[key] = word if held is True else [*held, word] if isinstance(held, list) else [held, word]
    return found


def _launcher_count(
    launcher: dict[str, Any], given: dict[str, Any], key: str, variable: str | None
) -> int | None:
    for value in (launcher.get(key), given.pop(key, None), variable):
        if isinstance(value, str) and value.isdecimal() and 0 < len(value) < 7:
            return int(value) or None
    return None


def _renamed(given: dict[str, Any]) -> dict[str, Any]:
    """Flags by the names of Megatron's arguments."""
    out: dict[str, Any] = {}
    for key, value in given.items():
        name = _READ_AS.get(key, key)
        if name.startswith("!"):
            out[name[1:]] = False
        elif key == "fp8_hybrid":
            out["fp8"] = "hybrid"
        elif key == "use_rotary_position_embeddings":
            out.setdefault("position_embedding_type", "rope")
        else:
            out[name] = value
    return out
