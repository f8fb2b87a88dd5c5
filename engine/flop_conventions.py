"""How each source counts FLOPs, so that a TFLOP/s or MFU figure can be turned back into tokens/s.

Ours (:mod:`shardwise.engine.flops`) is ``causal``: 6 FLOPs per active matrix weight, output head
included and input embedding not, plus attention with the causal half. The others differ from it by:

=================  ==============================================================================
``full``           attention counted over the whole square (Korthikanti et al. 2022, appendix A)
``full+embedding`` as ``full``, and the input embedding counted as a matrix (6N + 12Lhs, PaLM)
``parameters``     no attention at all, both embeddings (6N)
``hardware``       as ``full``, and the layers' forward once more for recomputation (SC21,
                   arXiv 2104.04473, equation 3: ``96Bslh^2(1 + s/6h + V/16lh)``)
=================  ==============================================================================

Which source uses which was found from the rows that give both tokens/s and TFLOP/s or MFU; a test holds
the agreement.
"""

from __future__ import annotations

import re
from typing import Literal

from shardwise.engine.cases.reading import Case
from shardwise.engine.efficiency import matrix_peak
from shardwise.engine.flops import flops_per_token, head_dims, matmul_parameters
from shardwise.engine.model import Model
from shardwise.engine.recipe import Recipe

Convention = Literal["causal", "full", "full+embedding", "parameters", "hardware"]

_NOTES: tuple[tuple[str, Convention], ...] = (
    (r"6n/peak|without attention", "parameters"),
    (r"hardware flops (incl|with recompute)|are hardware flops|count recompute|8n\b", "hardware"),
    (r"causal ?\(half\)|causal-half|causal half", "causal"),
    (r"attention not halved|non-causal|full attention|without causal discount", "full"),
)
"""What the notes of a case say of its source, first match wins."""

_TITLES: tuple[tuple[str, Convention], ...] = (
    (r"flagperf", "parameters"),
    (r"bigscience|2104\.04473|sc21", "hardware"),
    (r"aleph-alpha|efficient parallelization layouts", "full"),
    (r"vocabulary parallelism", "full"),
    (r"dgx cloud|nemo 24|nemo framework launcher", "full"),
)

_FRAMEWORKS: tuple[tuple[str, Convention], ...] = (
    (r"nanotron|fms-fsdp|kempner", "full+embedding"),
    (r"megatron-deepspeed", "hardware"),
    (r"torchtitan|llm-foundry|maxtext|meta internal|deepspeed|xtuner|automodel.*lora", "full"),
    (r"megatron-bridge|automodel|primus", "causal"),
)

_CAUSAL_SINCE = 2025
"""Megatron-LM halves causal attention since its core 0.12 of 2025; before, it counted the square."""


def convention(case: Case, model: Model, pp: int) -> Convention:
    """The FLOP convention of a case's source: by its notes, its title, its framework and release."""
    framework = case.framework.name.lower()
    notes = (case.notes or "").lower()
    if re.search("nanotron", framework):
        # The benchmark counts parameters as stored: a tied embedding is there twice only on a pipeline.
        single = model.share_embeddings_and_output_weights and pp == 1
        return "full" if single else "full+embedding"
    if "internevo" in framework:
        # Its counter adds the recomputed forward only when activation checkpointing is on.
        return "hardware" if (case.recompute or "").startswith("full") else "full"
    if "for the dense models" in notes:
        return "causal" if model.is_moe else "full"
    if "kempner" in framework and model.is_moe:
        return "full"
    title = f"{case.source.title} {case.source.url}".lower()
    for text, table in ((notes, _NOTES), (title, _TITLES), (framework, _FRAMEWORKS)):
        for pattern, name in table:
            if re.search(pattern, text):
                return "full+embedding" if name == "full" and "kempner" in framework else name
    if framework.startswith("nemo 2"):
        return "causal" if model.is_moe else "full"
    return _megatron(case)


def _megatron(case: Case) -> Convention:
    version = (case.framework.version or "").lower()
    year = re.search(r"20[12]\d", f"{version} {case.source.title}")
    if year:
        return "causal" if int(year.group()) >= _CAUSAL_SINCE else "full"
    core = re.search(r"(?<!\d)0\.(\d+)", version)
    if core:
        return "causal" if int(core.group(1)) >= 12 else "full"
    return "full" if case.framework.name.lower().startswith("nemo") else "causal"


def flops_per_token_as(name: Convention, model: Model, seq_len: int) -> float:
    """FLOPs of one trained token, forward and backward, as convention ``name`` counts them."""
    weights = matmul_parameters(model)
    embedding = float(model.vocab_size * model.hidden_size)
    layers = model.num_layers + model.mtp_num_layers
    square = 6.0 * model.num_attention_heads * sum(head_dims(model)) * seq_len * layers
    if name == "causal":
        return flops_per_token(model, seq_len)
    if name == "full":
        return 6 * weights + square
    if name == "full+embedding":
        return 6 * (weights + embedding) + square
    if name == "parameters":
        return 6 * (weights + embedding)
    heads = embedding * (1 + model.mtp_num_layers)
    return 8 * (weights - heads) + 6 * heads + square * 4 / 3


def tokens_from_tflops(case: Case, recipe: Recipe, model: Model, tflops: float) -> float:
    """tokens/s/GPU that ``tflops`` TFLOP/s per GPU mean in the case's convention."""
    return tflops * 1e12 / flops_per_token_as(convention(case, model, recipe.pp), model, recipe.seq_len)


def measured_tokens_per_s(case: Case, recipe: Recipe, model: Model) -> float | None:
    """tokens/s/GPU from the case's TFLOP/s or, failing that, its MFU alone; None when it has neither.

    ``model`` is the case's own model, which a recipe with an uneven pipeline may have padded. MFU refers
    to the peak that the notes name, else to the dense peak of the recipe's matrix format.
    """
    measured = case.measured
    if measured.tflops_per_gpu:
        return tokens_from_tflops(case, recipe, model, measured.tflops_per_gpu)
    if measured.mfu_pct:
        return tokens_from_tflops(case, recipe, model, measured.mfu_pct / 100 * peak_tflops(case, recipe))
    return None


def peak_tflops(case: Case, recipe: Recipe) -> float:
    """TFLOP/s that the case's MFU refers to: as its notes say, else the dense peak of the recipe's format."""
    stated = re.search(r"MFU (?:vs|against)\D{0,20}(\d+(?:\.\d+)?)\s*T", case.notes or "")
    if stated:
        return float(stated.group(1))
    return matrix_peak(recipe.cluster.gpu, recipe.precision) / 1e12
