"""Primus (AMD): an experiment file whose ``overrides`` go over Primus's own presets.

Written: an overlay of one ``pre_trainer`` module for the Megatron backend, with every argument that the
recipe decides spelled out, so that what trains is what was projected even where a preset differs.
Read: the same, with ``extends`` between files, ``${VAR:default}`` taken at its default (never from this
process's environment) and Primus's defaults for what the file leaves out. Spellings and defaults from
AMD-AGI/Primus at fd1eeabb: ``primus/configs/modules/megatron/*.yaml``, ``primus/configs/models/megatron``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwise.engine import catalog
from shardwise.engine.catalog.documents import parse_mapping
from shardwise.engine.errors import ConfigError, UnsupportedError
from shardwise.engine.frameworks.arguments import Arguments
from shardwise.engine.frameworks.base import Hints, Read, Written, read_source, slug
from shardwise.engine.frameworks.clusters import resolve_cluster
from shardwise.engine.frameworks.megatron_model import resolve_model
from shardwise.engine.frameworks.megatron_read import RecipeReader
from shardwise.engine.frameworks.megatron_write import environment, sections
from shardwise.engine.frameworks.yaml_text import yaml_block
from shardwise.engine.model import Model
from shardwise.engine.recipe import Recipe

PRIMUS_COMMIT = "fd1eeabb"
"""The AMD-AGI/Primus commit whose keys are written."""

PRESETS = {
    "deepseek-v2": "deepseek_v2",
    "deepseek-v2-lite": "deepseek_v2_lite",
    "deepseek-v3": "deepseek_v3",
    "gpt-oss-20b": "gpt_oss_20B",
    "gpt-oss-120b": "gpt_oss_120B",
    "kimi-k2": "kimi_k2",
    "llama-2-7b": "llama2_7B",
    "llama-2-13b": "llama2_13B",
    "llama-2-70b": "llama2_70B",
    "llama-3-8b": "llama3_8B",
    "llama-3-70b": "llama3_70B",
    "llama-3.1-8b": "llama3.1_8B",
    "llama-3.1-70b": "llama3.1_70B",
    "llama-3.1-405b": "llama3.1_405B",
    "llama-3.2-1b": "llama3.2_1B",
    "llama-3.2-3b": "llama3.2_3B",
    "mixtral-8x7b": "mixtral_8x7B_v0.1",
    "mixtral-8x22b": "mixtral_8x22B_v0.1",
    "qwen2.5-7b": "qwen2.5_7B",
    "qwen2.5-32b": "qwen2.5_32B",
    "qwen2.5-72b": "qwen2.5_72B",
    "qwen3-8b": "qwen3_8B",
    "qwen3-14b": "qwen3_14B",
    "qwen3-32b": "qwen3_32B",
    "qwen3-30b-a3b": "qwen3_30B_A3B",
    "qwen3-235b-a22b": "qwen3_235B_A22B",
}
"""Catalog model -> Primus's model preset."""

BLANK_PRESET = "language_model"
"""The preset that all others extend: what a model without a preset of its own starts from."""

DEFAULTS: dict[str, Any] = {
    "bf16": True,
    "micro_batch_size": 2,
    "global_batch_size": 16,
    "seq_length": 1024,
    "use_distributed_optimizer": True,
    "data_parallel_sharding_strategy": "no_shard",
    "sequence_parallel": True,
    "overlap_p2p_comm": True,
    "add_bias_linear": False,
    "swiglu": True,
    "untie_embeddings_and_output_weights": True,
    "fp8_recipe": "delayed",
    "attention_backend": "auto",
    "normalization": "LayerNorm",
    "position_embedding_type": "learned_absolute",
    "moe_layer_freq": 1,
    "moe_router_topk": 2,
    "moe_token_dispatcher_type": "allgather",
    "kv_lora_rank": 32,
    "qk_head_dim": 128,
    "qk_pos_emb_head_dim": 64,
    "v_head_dim": 128,
    "optimizer": "adam",
}
"""``pre_trainer.yaml`` over ``trainer_base.yaml`` over ``language_model.yaml``, where not off or null."""

_PRESET_MOE = {"moe_token_dispatcher_type": "alltoall"}
"""Every MoE preset of Primus chooses it over the base default."""

_VARIABLE = re.compile(r"\$\{([^:{}]+)(?::([^}]*))?\}")
_NUMBER = re.compile(r"-?\d{1,15}|-?\d*\.\d+(?:[eE][-+]?\d+)?|-?\d+(?:\.\d*)?[eE][-+]?\d+")
MAX_EXTENDS = 8
"""Longest chain of ``extends`` that is followed."""
_NOT_IN_PRIMUS = (
    "outer_dp_sharding_strategy",
    "cuda_graph_impl",
    "cuda_graph_modules",
    "moe_flex_dispatcher_backend",
    "fp4_param_gather",
)


class Primus:
    """AMD-AGI/Primus with its Megatron backend."""

    name = "primus"

    def filename(self, recipe: Recipe) -> str:
        """``MODEL.primus.yaml``."""
        return f"{slug(recipe.model.name)}.primus.yaml"

    def recognises(self, text: str) -> bool:
        """Whether ``text`` has Primus's module tree."""
        tree = re.search(r"^modules\s*:", text, re.MULTILINE)
        return tree is not None and re.search(r"\b(?:\w+_trainer|overrides)\s*:", text) is not None

    def write(self, recipe: Recipe, header: str) -> Written:
        """The experiment file of ``recipe``."""
        env = environment(recipe)
        preset = _preset(recipe.model)
        name = slug(recipe.model.name)
        lines = [
            header,
            f"# Keys as AMD-AGI/Primus@{PRIMUS_COMMIT} spells them. Add data and learning rate.",
            "work_group: ${PRIMUS_TEAM:amd}",
            "user_name: ${PRIMUS_USER:root}",
            f"exp_name: ${{PRIMUS_EXP_NAME:{name}-pretrain}}",
            "workspace: ${PRIMUS_WORKSPACE:./output}",
            "",
            "modules:",
            "  pre_trainer:",
            "    config: pre_trainer.yaml",
            "    framework: megatron",
            f"    model: {preset or BLANK_PRESET}.yaml",
            "    overrides:",
        ]
        for title, group in sections(recipe).items():
            lines.append(f"      # {title}")
            lines += yaml_block(_in_primus(title, group, recipe, preset), indent=6)
        nodes, per_node = recipe.cluster.num_nodes, recipe.cluster.gpus_per_node
        prefix = "".join(f"{key}={value} " for key, value in {**env, "GPUS_PER_NODE": str(per_node)}.items())
        mode = f"slurm srun -N {nodes}" if nodes > 1 else "direct"
        launch = f"{prefix}./runner/primus-cli {mode} -- train pretrain --config {self.filename(recipe)}"
        return Written("\n".join([*lines, ""]), launch, env)

    def read(self, text: str, path: Path | None, hints: Hints) -> Read:
        """The recipe that an experiment file describes."""
        notes: list[str] = []
        document = _document(text, path, notes)
        module = _module(document, notes)
        overrides = module.get("overrides") or {}
        if not isinstance(overrides, dict):
            raise ConfigError("overrides: must be a mapping of arguments", field="overrides")
        given = {str(key): value for key, value in overrides.items()}
        preset = Path(str(module.get("model", ""))).name.removesuffix(".yaml").removesuffix(".yml")
        cluster, world, told = resolve_cluster(hints.cluster, None, None)
        own = hints.header_model or hints.carried.get("model")
        base: Model | None = None
        if hints.header_model:
            base = catalog.model(hints.header_model)
        elif preset and preset != BLANK_PRESET and not own and hints.model is None:
            base = _by_preset(preset)
        complete = base is None
        moe = preset not in ("", BLANK_PRESET)
        args = Arguments(given, {**DEFAULTS, **(_PRESET_MOE if moe else {})})
        seq_len = args.count("seq_length") or 1
        spec, model, remarks = resolve_model(args, hints, base=base, complete=complete, seq_len=seq_len)
        reader = RecipeReader(args, model, world, "Primus")
        fields = {"model": spec, "cluster": cluster, **reader.read()}
        if reader.args.flag("patch_zero_bubble") or reader.args.flag("patch_primus_pipeline"):
            notes.append("the pipeline schedule is Primus's own; priced as 1F1B, interleaved when vpp > 1")
        return Read(fields, args.unknown(), (*notes, *told, *remarks, *reader.notes))


def _in_primus(title: str, group: Mapping[str, Any], recipe: Recipe, preset: str | None) -> dict[str, Any]:
    """``group`` with the few keys that Primus spells otherwise or does not have."""
    out = {key: value for key, value in group.items() if key not in _NOT_IN_PRIMUS}
    if title == "model":
        if recipe.model.window_size is not None:
            # YAML keeps the pair that a flag has to spell as one word.
            out["window_size"] = [recipe.model.window_size - 1, 0]
        if preset is not None:
            # The preset's tokenizer decides the vocabulary.
            out.pop("vocab_size", None)
        else:
            out |= {"tokenizer_type": "NullTokenizer", "hidden_dropout": 0.0, "attention_dropout": 0.0}
    if title == "moe" and recipe.moe_token_dispatcher in ("deepep", "hybridep"):
        # Primus-Turbo's DeepEP replaces the all-to-all dispatcher; it has no HybridEP.
        out |= {
            "moe_token_dispatcher_type": "alltoall",
            "enable_primus_turbo": True,
            "use_turbo_deepep": True,
        }
        out["moe_shared_expert_overlap"] = False
    if title == "kernels" and recipe.cuda_graphs:
        out["enable_cuda_graph"] = True
    if title == "precision" and recipe.precision == "nvfp4":
        out["fp4_param"] = recipe.fp8_param_gather
    return out


def _preset(model: Model) -> str | None:
    """Primus's preset of ``model``, when it is the catalog's own."""
    spec = catalog.model_spec(model)
    return PRESETS.get(spec) if isinstance(spec, str) else None


def _by_preset(preset: str) -> Model:
    for name, stem in PRESETS.items():
        if stem == preset:
            return catalog.model(name)
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", preset):
        raise ConfigError(f"model = {preset[:60]!r}: not a model preset of Primus; pass model", field="model")
    try:
        return catalog.model(preset)
    except ConfigError as err:
        raise ConfigError(f"{err}; or pass model, e.g. its config.json", field="model") from err


def _document(text: str, path: Path | None, notes: list[str], depth: int = 0) -> dict[str, Any]:
    """The file as a mapping: variables at their defaults, ``extends`` merged below it."""
    data = parse_mapping(text, where=str(path or "file"))
    data = _defaulted(data)
    parents = data.pop("extends", None) or []
    merged: dict[str, Any] = {}
    for parent in parents if isinstance(parents, list) else [parents]:
        merged = _merge(merged, _parent(str(parent), path, notes, depth))
    return _merge(merged, data)


def _parent(name: str, path: Path | None, notes: list[str], depth: int) -> dict[str, Any]:
    if not name.endswith((".yaml", ".yml")) or depth >= MAX_EXTENDS:
        raise ConfigError(
            f"extends = {name[:60]!r}: at most {MAX_EXTENDS} levels of .yaml files", field="extends"
        )
    target = path.parent / name if path is not None else None
    if target is None or not os.path.isfile(target):
        notes.append(f"extends {name}: not found beside the file; Primus's own defaults stand in for it")
        return {}
    return _document(read_source(target), target, notes, depth + 1)


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(base)
    for key, value in over.items():
        held = out.get(key)
        out[key] = _merge(held, value) if isinstance(held, dict) and isinstance(value, dict) else value
    return out


def _defaulted(value: Any) -> Any:
    """``value`` with every ``${VAR:default}`` at its default, typed as what it reads as."""
    if isinstance(value, dict):
        return {key: _defaulted(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_defaulted(item) for item in value]
    if not isinstance(value, str) or "${" not in value:
        return value
    text = _VARIABLE.sub(lambda m: m.group(0) if m.group(2) is None else m.group(2), value).strip()
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if text.lower() in ("null", "none", "~", ""):
        return None
    if _NUMBER.fullmatch(text):
        return int(text) if text.lstrip("-").isdigit() else float(text)
    return text


def _module(document: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    modules = document.get("modules")
    if not isinstance(modules, dict) or not modules:
        raise ConfigError("modules: Primus needs one, with a pre_trainer in it", field="modules")
    named = "pre_trainer" if "pre_trainer" in modules else str(next(iter(modules)))
    module = modules[named]
    if not isinstance(module, dict):
        raise ConfigError(f"modules.{named}: must be a mapping", field="modules")
    backend = str(module.get("framework", "megatron"))
    if backend != "megatron":
        raise UnsupportedError(
            f"modules.{named}.framework = {backend!r}: supported: megatron", field="framework"
        )
    if named != "pre_trainer":
        notes.append(f"modules.{named}: read as pre-training; its own preset's defaults may differ")
    return module
