"""Megatron arguments as a model: the architecture they describe, and which model of the catalog that is.

A *complete* description (Megatron-LM's flags: what is absent is at its default) is a model by itself;
a *partial* one (Primus's overrides over a model preset) only changes a base model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwise.engine import catalog
from shardwise.engine.errors import ConfigError
from shardwise.engine.frameworks.arguments import Arguments
from shardwise.engine.frameworks.base import Hints
from shardwise.engine.frameworks.patterns import moe_layer_fields, parse_layer_marks, parse_moe_layers
from shardwise.engine.model import Model

_COUNTS = ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "kv_channels", "vocab_size",
           "max_position_embeddings")  # fmt: skip
_MLA = ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")
_NORMS = {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}
_POSITIONS = {
    "rope": "rope",
    "yarn": "rope",
    "mrope": "rope",
    "learned_absolute": "learned_absolute",
    "none": "none",
}
_FLAGS = {
    "swiglu": "gated_linear_unit",
    "add_bias_linear": "add_bias_linear",
    "add_qkv_bias": "add_qkv_bias",
    "qk_layernorm": "qk_layernorm",
    "multi_latent_attention": "multi_latent_attention",
}
ESSENTIAL = ("num_layers", "hidden_size", "num_attention_heads")
"""What a description of a model must have."""


def model_fields(args: Arguments, *, complete: bool, base: Model | None = None) -> dict[str, Any]:
    """The ``Model`` fields that ``args`` decide: all of them when ``complete``, else what the file sets.

    ``base`` supplies what a partial description leaves open (the layer count, whether it is MLA or MoE).
    """

    def wanted(key: str) -> bool:
        return args.given(key) or (complete and args.get(key) is not None)

    fields: dict[str, Any] = {key: args.count(key) for key in _COUNTS if wanted(key)}
    fields |= {field: args.flag(key) for key, field in _FLAGS.items() if complete or args.given(key)}
    if complete or args.given("untie_embeddings_and_output_weights"):
        untied = args.flag("untie_embeddings_and_output_weights")
        fields["share_embeddings_and_output_weights"] = not untied
    if wanted("normalization"):
        fields["normalization"] = _NORMS[str(args.word("normalization", tuple(_NORMS)))]
    if wanted("position_embedding_type"):
        word = args.get("position_embedding_type")
        # The word "none" is a choice here, not an absent value.
        known = str(word).strip().lower() == "none"
        fields["position_embedding_type"] = (
            "none" if known else _POSITIONS[str(args.word("position_embedding_type", tuple(_POSITIONS)))]
        )
    mla = fields.get("multi_latent_attention", base.multi_latent_attention if base else False)
    if mla:
        # There the flag norms the two latents, which every MLA model has; the field means the heads.
        fields.pop("qk_layernorm", None)
        fields |= {key: args.count(key) for key in _MLA if wanted(key)}
    _attention(args, fields, complete=complete, mla=mla, base=base)
    _derived_sizes(fields, complete=complete)
    _experts(args, fields, complete=complete, base=base)
    if wanted("mtp_num_layers"):
        fields["mtp_num_layers"] = args.integer("mtp_num_layers")
    return fields


def _attention(
    args: Arguments, fields: dict[str, Any], *, complete: bool, mla: bool, base: Model | None
) -> None:
    heads = fields.get("num_attention_heads")
    grouped = args.flag("group_query_attention") or (not complete and args.given("num_query_groups"))
    groups = args.count("num_query_groups")
    if grouped and groups is not None and not mla:
        fields["num_query_groups"] = groups
    elif complete:
        fields["num_query_groups"] = heads
    if args.given("softmax_type") or complete:
        fields["attention_sink"] = args.word("softmax_type") == "learnable"
    window = _window(args)
    if window is not None:
        layers = fields.get("num_layers") or (base.num_layers if base else 1)
        fields |= {"window_size": window, "window_attn_every": _window_every(args, layers)}
    elif complete:
        fields |= {"window_size": None, "window_attn_every": 1}
        args.ignore(["window_attn_skip_freq"])


def _window(args: Arguments) -> int | None:
    value = args.get("window_size")
    if value is None:
        return None
    text = ",".join(str(item) for item in value) if isinstance(value, list) else str(value)
    left = text.strip("()[] ").split(",")[0].strip()
    if not left.isdecimal() or len(left) > 9:
        raise ConfigError(
            f"window_size = {text[:40]!r}: left,right such as 4095,0 is allowed", field="window_size"
        )
    return int(left) + 1


def _window_every(args: Arguments, layers: int) -> int:
    """``window_attn_every`` from Megatron's number or list of windowed layers."""
    value = args.get("window_attn_skip_freq")
    if value is None or (isinstance(value, (int, str)) and str(value).strip().isdigit()):
        return args.count("window_attn_skip_freq") or 1
    marks = parse_layer_marks(value, layers, "window_attn_skip_freq")
    every = marks.index(False) + 1 if False in marks else 1
    if any(mark != (every == 1 or (i + 1) % every != 0) for i, mark in enumerate(marks)):
        raise ConfigError(
            "window_attn_skip_freq: only one full-attention layer after every so many windowed is modelled",
            field="window_attn_skip_freq",
        )
    return every


def _derived_sizes(fields: dict[str, Any], *, complete: bool) -> None:
    """Megatron's own defaults for the MLP width and the head size."""
    hidden, heads = fields.get("hidden_size"), fields.get("num_attention_heads")
    if not complete or not hidden or not heads:
        return
    if "ffn_hidden_size" not in fields:
        gated = fields["gated_linear_unit"]
        fields["ffn_hidden_size"] = max(64, int(8 * hidden / 3) // 64 * 64) if gated else 4 * hidden
    if "kv_channels" not in fields:
        if hidden % heads:
            raise ConfigError(
                f"kv_channels: not given, and hidden_size={hidden} is not divisible by its {heads} heads",
                field="kv_channels",
            )
        fields["kv_channels"] = hidden // heads


def _experts(args: Arguments, fields: dict[str, Any], *, complete: bool, base: Model | None) -> None:
    experts = args.count("num_experts") if complete or args.given("num_experts") else None
    if experts is not None:
        fields["num_experts"] = experts
    moe = experts is not None or (not complete and base is not None and base.is_moe)
    if not moe:
        args.ignore(["moe_layer_freq", "moe_router_topk", "moe_ffn_hidden_size"])
        return
    if complete or args.given("moe_router_topk"):
        fields["moe_router_topk"] = args.count("moe_router_topk")
    for name in ("moe_router_num_groups", "moe_router_group_topk"):
        if args.given(name):
            fields[name] = args.count(name)
    if args.given("moe_ffn_hidden_size"):
        fields["moe_ffn_hidden_size"] = args.count("moe_ffn_hidden_size")
    elif complete:
        fields["moe_ffn_hidden_size"] = fields.get("ffn_hidden_size")
    if args.given("moe_shared_expert_intermediate_size"):
        fields["moe_shared_expert_intermediate_size"] = args.integer("moe_shared_expert_intermediate_size")
        fields["moe_shared_expert_gate"] = args.flag("moe_shared_expert_gate")
    layers = fields.get("num_layers") or (base.num_layers if base else None)
    if layers and (complete or args.given("moe_layer_freq")):
        pair = moe_layer_fields(parse_moe_layers(args.get("moe_layer_freq"), layers))
        if pair is None:
            raise ConfigError(
                "moe_layer_freq: only leading dense layers and then one MoE layer every so many are modelled",
                field="moe_layer_freq",
            )
        fields |= pair


def resolve_model(
    args: Arguments, hints: Hints, *, base: Model | None, complete: bool, seq_len: int
) -> tuple[str | dict[str, Any], Model, list[str]]:
    """The model of a file: ``(what load_recipe takes, the model, notes)``.

    ``base`` is the file's own word for it (our header, a preset). The caller's ``hints.model`` wins
    over everything; then the file's figures win over ``base``; without a base the catalog is searched
    for a model that agrees with every figure. Raises ``ConfigError`` when the file describes none.
    """
    chosen = catalog.model(hints.model) if hints.model is not None else None
    complete = complete and all(args.given(key) for key in ESSENTIAL)
    reference = chosen or base
    fields = model_fields(args, complete=complete, base=reference)
    fields |= hints.carried.get("model", {})
    if reference is not None:
        _keep_longer_positions(fields, reference, seq_len)
        changed = sorted(key for key, value in fields.items() if getattr(reference, key, value) != value)
        if chosen is not None:
            told = [
                f"model: the file's {key}={fields[key]!r} yields to {getattr(chosen, key)!r}"
                for key in changed
            ]
            return _spec(chosen), chosen, told
        if not changed:
            return _spec(reference), reference, []
        edited = Model.build(
            {**_dump(reference), "name": f"{reference.name}-edited", **fields}, where="model"
        )
        return _spec(edited), edited, [f"model: {reference.name} with {', '.join(changed)} as in the file"]
    if not complete:
        raise ConfigError(
            f"model: the file does not give {', '.join(k for k in ESSENTIAL if not args.given(k))}; "
            "pass model, e.g. mixtral-8x22b",
            field="model",
        )
    return _identify(fields, args, seq_len)


def _identify(
    fields: dict[str, Any], args: Arguments, seq_len: int
) -> tuple[str | dict[str, Any], Model, list[str]]:
    if "name" not in fields:
        known = catalog.models()
        alike = [name for name in sorted(known) if _agrees(known[name], fields)]
        if alike:
            others = f" (also: {', '.join(alike[1:])})" if len(alike) > 1 else ""
            return alike[0], known[alike[0]], [f"model: recognised as {alike[0]} by its sizes{others}"]
    if "vocab_size" not in fields:
        raise ConfigError(
            "vocab_size: the file leaves it to the tokenizer; give --vocab-size or pass model",
            field="vocab_size",
        )
    fields.setdefault("max_position_embeddings", seq_len)
    built = Model.build({"name": "imported", "source": "the imported file's flags", **fields}, where="model")
    return _spec(built), built, []


def _agrees(model: Model, fields: Mapping[str, Any]) -> bool:
    return all(
        getattr(model, key) == value for key, value in fields.items() if key != "max_position_embeddings"
    )


def _keep_longer_positions(fields: dict[str, Any], reference: Model, seq_len: int) -> None:
    """A shorter position table is how files bound the sequence; it is no other model."""
    if seq_len <= reference.max_position_embeddings and fields.get("max_position_embeddings", 0) >= seq_len:
        fields.pop("max_position_embeddings", None)


def _dump(model: Model) -> dict[str, Any]:
    return model.model_dump(mode="json")


def _spec(model: Model) -> str | dict[str, Any]:
    return catalog.model_spec(model)
