"""How a case spreads its layers over pipeline stages.

Most cases divide evenly, or do so when the embedding and the loss count as a layer each; some state a layout
(``Et*4|(tttt|)*14tmL``). The others do not say how, or have a framework that deals layers out one by one.
For these this picks the nearest split by layers of the first and the last rank: middle stages full, as
the slowest stage decides the step time. Where even that does not fit (28 layers on 16 stages, most of them
with 2), the model is priced with as many layers as fill every stage: the slowest stage is then right, and
the ramp slightly long.
"""

from __future__ import annotations

from typing import Any

from shardwise.engine.cases.labels import recipe_framework
from shardwise.engine.cases.reading import Case
from shardwise.engine.errors import ConfigError
from shardwise.engine.layout_string import parse_layout
from shardwise.engine.model import Model


def split_fields(
    case: Case, model: Model, pp: int, vpp: int, assumptions: list[str]
) -> tuple[dict[str, Any], int]:
    """Recipe fields of the split, none when every chunk has equally many layers; and the layers to price."""
    chunks, layers = pp * vpp, model.num_layers
    stated = _stated_layout(case, model, chunks)
    if stated is not None:
        return {"pipeline_model_parallel_layout": stated}, layers
    if recipe_framework(case) == "nanotron" and pp > 1 and layers >= pp:
        return _by_cost(model, pp), layers
    both = {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True}
    if pp > 1 and case.options.get("embedding_and_loss_counted_as_layers"):
        return both, layers
    if pp == 1 or layers % chunks == 0:
        return {}, layers
    if (layers + 2) % chunks == 0:
        assumptions.append("embedding and loss count as pipeline layers: the layers divide only then")
        return both, layers
    full = -(-layers // chunks)
    if pp == 2:
        first, last = (full * vpp, full * vpp) if vpp > 1 else (full, layers - full)
    else:
        rounds = (layers - (pp - 2) * full * vpp) // vpp
        first = min(full, rounds - 1) * vpp
        last = min(full * vpp, rounds * vpp - first)
    if first < 1 or last < 1:
        assumptions.append(f"priced with {full * chunks} layers, {full} a chunk: {layers} do not divide")
        return {}, full * chunks
    assumptions.append(
        f"{first} layers on the first and {last} on the last pipeline stage, {full} a middle chunk"
    )
    return {"num_layers_in_first_pipeline_stage": first, "num_layers_in_last_pipeline_stage": last}, layers


def _stated_layout(case: Case, model: Model, chunks: int) -> str | None:
    """The layout in the case's options or beside its schedule's name (``1f1b, layout Ett|(tt|)*6mL``), where
    it is one of this model over these chunks."""
    _, _, beside = (case.parallel.pp_schedule or "").partition("layout ")
    for text in (case.options.get("pp_layout"), case.options.get("pipeline_layout"), beside):
        if not isinstance(text, str) or not text:
            continue
        try:
            layout = parse_layout(text)
        except ConfigError:
            continue
        counts = (len(layout.chunks), layout.count("t"), layout.count("m"))
        if counts == (chunks, model.num_layers, model.mtp_num_layers):
            return text
    return None


def _by_cost(model: Model, pp: int) -> dict[str, Any]:
    """nanotron's split: the next rank begins once the blocks before it cost its share of the whole, a
    layer costing its matrices (attention taken as four squares) and the output head its own
    (``models/base.py``, ``LlamaForTraining.get_block_compute_costs``)."""
    width = model.num_attention_heads * model.kv_channels
    layer = 4 * width * model.hidden_size + 3 * model.ffn_hidden_size * model.hidden_size
    share = (model.num_layers * layer + model.vocab_size * model.hidden_size) / pp
    first = min(-int(-share // layer), model.num_layers - pp + 1)
    middle = (model.num_layers - first - 1) // (pp - 2) if pp > 2 else 0
    last = model.num_layers - first - (pp - 2) * middle
    return {"num_layers_in_first_pipeline_stage": first, "num_layers_in_last_pipeline_stage": last}
