"""The model of a case as the engine's :class:`~shardwise.engine.model.Model`."""

from __future__ import annotations

import re
from typing import Any

from shardwise.engine import catalog
from shardwise.engine.cases.reading import Arch, Case
from shardwise.engine.cases.scope import CannotScoreError
from shardwise.engine.errors import ConfigError
from shardwise.engine.model import Model

_FAMILIES: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        r"gpt-?oss",
        {"attention_sink": True, "window_size": 128, "window_attn_every": 2, "add_bias_linear": True},
    ),
    (r"qwen-?3", {"qk_layernorm": True}),
    (r"qwen-?(1\.5|2)", {"add_qkv_bias": True}),
    (r"maverick", {"moe_layer_freq": 2}),
    (r"nemotron-?4|nemotron-3 22b", {"add_bias_linear": False, "position_embedding_type": "rope"}),
    (r"\bmpt\b", {"add_bias_linear": False}),
)
"""What the arch block cannot state, by the model's name (the models' public configurations)."""


def case_model(case: Case, assumptions: list[str]) -> Model:
    """The case's model; what it leaves out is taken from the catalog by name, or assumed and said so.

    Raises :class:`CannotScoreError` when neither gives the sizes that decide time and memory.
    """
    arch = case.model.arch
    missing = [name for name in ("layers", "hidden", "vocab") if not getattr(arch, name)]
    if missing:
        return _from_catalog(case, missing, assumptions)
    try:
        return Model.build(_fields(case.model.name, arch, case.parallel.tp or 1, assumptions))
    except ConfigError as err:
        raise CannotScoreError(f"contradictory architecture: {err}") from err


def _from_catalog(case: Case, missing: list[str], assumptions: list[str]) -> Model:
    stated = ", ".join(missing)
    try:
        known = catalog.model(case.model.name or "unnamed")
    except ConfigError as err:
        raise CannotScoreError(f"architecture not stated ({stated}) and {err}") from err
    layers, hidden = case.model.arch.layers, case.model.arch.hidden
    if hidden not in (None, known.hidden_size):
        raise CannotScoreError(
            f"architecture not stated ({stated}) and hidden={hidden} is not {known.name}'s"
        )
    assumptions.append(f"model {known.name} from the catalog: the case leaves out {stated}")
    return known.with_(num_layers=layers) if layers and layers != known.num_layers else known


def _fields(name: str, arch: Arch, tp: int, assumptions: list[str]) -> dict[str, Any]:
    assert arch.hidden and arch.layers and arch.vocab
    gated = arch.gated_mlp if arch.gated_mlp is not None else True
    heads = arch.heads or _assumed_heads(arch.hidden, tp, assumptions)
    head_dim = arch.head_dim or max(arch.hidden // heads, 1)
    moe = bool(arch.experts)
    ffn = arch.ffn_hidden or (arch.moe_ffn_hidden if moe else None) or 4 * arch.hidden
    fields: dict[str, Any] = {
        "name": re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-") or "unnamed",
        "num_layers": arch.layers,
        "hidden_size": arch.hidden,
        "ffn_hidden_size": ffn,
        "num_attention_heads": heads,
        "num_query_groups": arch.kv_heads or heads,
        "kv_channels": head_dim,
        "vocab_size": arch.vocab,
        "gated_linear_unit": gated,
        "share_embeddings_and_output_weights": bool(arch.tied_embeddings),
        "mtp_num_layers": arch.mtp_layers or 0,
    }
    if not gated:
        # A two-matrix MLP is a GPT-like model: LayerNorm, biases, learned positions.
        fields |= {
            "normalization": "LayerNorm",
            "add_bias_linear": True,
            "position_embedding_type": "learned_absolute",
        }
    if moe:
        fields |= {
            "num_experts": arch.experts,
            "moe_router_topk": arch.topk or 1,
            "moe_ffn_hidden_size": arch.moe_ffn_hidden or ffn,
            "moe_shared_expert_intermediate_size": arch.shared_ffn_hidden or 0,
            "num_dense_layers": min(arch.dense_layers or 0, arch.layers),
        }
    if arch.mla is not None and arch.mla.kv_lora_rank:
        mla = arch.mla
        fields |= {
            "multi_latent_attention": True,
            "num_query_groups": heads,
            "q_lora_rank": mla.q_lora_rank or None,
            "kv_lora_rank": mla.kv_lora_rank,
            "qk_head_dim": mla.qk_nope_head_dim,
            "qk_pos_emb_head_dim": mla.qk_rope_head_dim,
            "v_head_dim": mla.v_head_dim,
            "kv_channels": (mla.qk_nope_head_dim or 0) + (mla.qk_rope_head_dim or 0) or head_dim,
        }
    for pattern, extra in _FAMILIES:
        if re.search(pattern, name.lower()):
            fields |= extra
    return fields


def _assumed_heads(hidden: int, tp: int, assumptions: list[str]) -> int:
    """Heads of about 128, the usual size, in a number that ``tp`` divides; for sources that leave it out."""
    sizes = (size for size in (128, 96, 64, 144, 192, 256) if hidden % size == 0 and hidden // size % tp == 0)
    heads = hidden // next(sizes, hidden)
    assumptions.append(f"{heads} attention heads: not stated")
    return heads
