"""Megatron's layout strings: read, placed, balanced, judged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recipes import DEEPSEEK, LLAMA, recipe

from shardwise.engine.errors import ConfigError
from shardwise.engine.frameworks import import_config
from shardwise.engine.layout_string import balanced_layout, canonical_layout, parse_layout
from shardwise.engine.legality import check
from shardwise.engine.lowering import lower
from shardwise.engine.parameters import stage_parameters
from shardwise.engine.pipeline_layout import all_stages, layer_range, representative_stages
from shardwise.engine.projection import project_table
from shardwise.engine.table import Table

_TEXTS = st.lists(st.sampled_from(["t", "tt", "t*3", "(tt|)*2", "|", "m", "E", "L", ","]), min_size=1).map(
    "".join
)
_ANY = st.lists(st.sampled_from(["t", "t*3", "(", ")", "*2", "*13", "|", "m", "E", "L", "x", "e", " "])).map(
    "".join
)
_ENDS = [[], ["m"], ["tm"], ["m", ""], ["m", "", ""], ["mm", ""], ["m", "m"], ["m", "t"], ["tL"], ["E"]]
_LAID = st.tuples(
    st.lists(st.sampled_from(["t", "tt", "ttt", ""]), min_size=1, max_size=6), st.sampled_from(_ENDS)
).map(lambda parts: parts[0] + parts[1])
_CHUNKS = st.lists(st.sampled_from(["", "t", "tt", "ttt", "tm", "m", "mm", "E", "L", "tL"]), max_size=7)


def megatron_layout() -> Any:
    return pytest.importorskip(
        "megatron.core.transformer.pipeline_parallel_layer_layout"
    ).PipelineParallelLayerLayout


@pytest.mark.parametrize("text", ["Et|x|L", "(" * 99, "(t*9999|)*99999", "t" * 3000, "E(t|L"])
def test_what_is_no_layout_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="pipeline_model_parallel_layout"):
        parse_layout(text)


@settings(deadline=None)
@given(_TEXTS)
def test_we_read_what_megatron_core_reads(text: str) -> None:
    pytest.importorskip("megatron.core", reason="its own parser")
    from megatron.core.transformer.enums import LayerType
    from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout

    letter = {LayerType.embedding: "E", LayerType.loss: "L", LayerType.decoder: "t", LayerType.mtp: "m"}
    theirs = PipelineParallelLayerLayout.parse_str_to_list(text)
    try:
        ours = parse_layout(text).chunks
    except ConfigError:
        # Nothing but commas.
        assert not any(theirs)
        return
    assert ours == tuple("".join(letter[kind] for kind in chunk) for chunk in theirs)


@settings(deadline=None, max_examples=300)
@given(_ANY)
def test_we_refuse_what_megatron_core_refuses(text: str) -> None:
    """Blanks apart, which the canonical spelling leaves out, and nothing at all."""
    flat = text.replace(" ", "")
    if not flat:
        return
    theirs = megatron_layout()
    try:
        chunks = theirs.parse_str_to_list(flat)
    except AssertionError:
        with pytest.raises(ConfigError):
            parse_layout(text)
        return
    assert len(parse_layout(text).chunks) == len(chunks)


@settings(deadline=None)
@given(st.one_of(_TEXTS, _CHUNKS.map("|".join)))
def test_one_spelling_says_the_same(text: str) -> None:
    try:
        chunks = parse_layout(text).chunks
    except ConfigError:
        return
    spelled = canonical_layout(text)
    assert parse_layout(spelled).chunks == chunks
    assert canonical_layout(spelled) == spelled
    assert canonical_layout(" , ".join("|".join(chunks)) + " ") == spelled


def test_a_recipe_keeps_the_canonical_spelling() -> None:
    base = {**LLAMA, "pp": 4, "vpp": 2}
    spelled = [
        recipe(base, pipeline_model_parallel_layout=text).pipeline_model_parallel_layout
        for text in ("Et*10|(t*10|)*6t*10L", "E, t*10 | (tttttttttt|)*6, t*10, L")
    ]
    assert spelled[0] == spelled[1] == "Et*10|(t*10|)*6t*10L"


@settings(deadline=None, max_examples=300)
@given(
    _LAID,
    st.sampled_from([True, True, True, False]),
    st.sampled_from([1, 1, 2]),
    st.sampled_from([0, 0, 0, 1]),
)
def test_megatron_core_judges_a_layout_alike(middle: list[str], framed: bool, vpp: int, off: int) -> None:
    """Whole layouts, many of them wrong somewhere: the rule is broken where megatron-core raises."""
    theirs = megatron_layout()
    text = "|".join(
        [f"E{middle[0]}", *middle[1:-1], f"{middle[-1]}L"] if framed and len(middle) > 1 else middle
    )
    layers, mtp = text.count("t") + off, text.count("m")
    pp = max(len(middle) // vpp, 1)
    if not text.strip("|") or layers < 1:
        return
    base = recipe({**DEEPSEEK, "recompute": "none"}, num_layers_in_first_pipeline_stage=None,
                  num_layers_in_last_pipeline_stage=None)  # fmt: skip
    model = base.model.with_(num_layers=layers, num_dense_layers=min(1, layers), mtp_num_layers=mtp)
    r = base.with_(model=model, pp=pp, vpp=vpp, pipeline_model_parallel_layout=text)
    try:
        layout = theirs(text, pp)
        assert layout.virtual_pipeline_model_parallel_size == vpp
        layout.validate_layer_layout(layers, mtp)
        accepted = True
    except (AssertionError, IndexError):
        accepted = False
    broken = "pipeline-layout" in {violation.rule for violation in check(r)}
    assert broken != accepted


@settings(deadline=None)
@given(st.integers(4, 100), st.integers(0, 2), st.sampled_from([2, 4, 8, 16]), st.integers(1, 4))
def test_a_balanced_layout_is_legal_to_megatron_core(layers: int, mtp: int, pp: int, vpp: int) -> None:
    text = balanced_layout(layers, mtp, pp, vpp)
    if text is None:
        return
    layout = parse_layout(text)
    counts = [chunk.count("t") for chunk in layout.chunks]
    assert len(counts) == pp * vpp and sum(counts) == layers and layout.count("m") == mtp
    assert max(counts[:-1]) - min(counts[:-1]) <= 1 and counts[-1] <= max(counts)
    megatron = pytest.importorskip("megatron.core.transformer.pipeline_parallel_layer_layout")
    megatron.PipelineParallelLayerLayout(text, pp).validate_layer_layout(layers, mtp)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("Et*4|(t*4|)*14tmL", None),
        ("Et*5|(t*4|)*14mL", None),
        ("Et*4|(t*4|)*13t*4m|tL", "pipeline-layout"),
        ("Et*4|(t*4|)*14tL", "pipeline-layout"),
        ("t*4|(t*4|)*14tmL", "pipeline-layout"),
        ("Et*4|(t*4|)*7t*29mL", "pipeline-layout"),
    ],
)
def test_legality_of_a_layout(text: str, rule: str | None) -> None:
    base = {**DEEPSEEK, "pp": 8, "vpp": 2}
    for name in ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"):
        base.pop(name, None)
    r = recipe(base, pipeline_model_parallel_layout=text, num_layers_in_first_pipeline_stage=None,
               num_layers_in_last_pipeline_stage=None)  # fmt: skip
    found = {violation.rule: violation for violation in check(r)}
    assert ("pipeline-layout" in found) == (rule is not None)
    assert not {"pipeline-layers", "virtual-stages", "pipeline-uneven-split"} & found.keys()
    if rule is not None:
        # The nearest legal layout is told, for this very pipeline.
        assert not check(r.with_(**found[rule].nearest))


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 12), min_size=8, max_size=8), st.booleans())
def test_stages_sum_to_the_model(counts: list[int], interleaved: bool) -> None:
    layers = sum(counts)
    if layers == 0:
        return
    text = "E" + "|".join("t" * n for n in counts) + "L"
    base = recipe(LLAMA)
    r = base.with_(model=base.model.with_(num_layers=layers), pp=4 if interleaved else 8,
                   vpp=2 if interleaved else 1, pipeline_model_parallel_layout=text)  # fmt: skip
    table = Table.of([r])
    stages = all_stages(table)
    low = lower(table, stages)
    assert sum(float(count.sum()) for count in low.layers.values()) == layers
    held = [layer_range(table, stages, chunk) for chunk in range(r.vpp)]
    sizes = np.stack([end - start for start, end in held], axis=2)[0]
    assert [[int(n) for n in row] for row in sizes] == [
        [counts[c * r.pp + s] for c in range(r.vpp)] for s in range(r.pp)
    ]
    whole = table.take([0])
    one = Table.of([r.with_(pp=1, vpp=1, pipeline_model_parallel_layout=None)])
    both = [float(stage_parameters(lower(t, all_stages(t))).dense.sum()) for t in (whole, one)]
    assert both[0] == pytest.approx(both[1])
    # The few stages that are priced by default hold the worst.
    everything, few = project_table(table, stages), project_table(table)
    assert few.memory.peak_bytes == everything.memory.peak_bytes
    assert few.step_time_s == pytest.approx(everything.step_time_s)
    assert set(representative_stages(table)[0]) <= set(range(r.pp))


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 9), min_size=8, max_size=8), st.integers(0, 7), st.sampled_from([1, 2]))
def test_stages_conserve_parameters(counts: list[int], mtp_chunk: int, vpp: int) -> None:
    """With dense and MoE layers, wherever the prediction layer sits: all stages hold what one would, and
    Megatron-Core's second embedding where the prediction layer is not on the first stage."""
    layers = sum(counts)
    if layers < 3:
        return
    pp = 8 // vpp
    last = max([i for i, n in enumerate(counts) if n])
    at = max(mtp_chunk, last, 8 - pp)
    chunks = ["t" * n + "m" * (i == at) for i, n in enumerate(counts)]
    base = recipe(DEEPSEEK, num_layers_in_first_pipeline_stage=None, num_layers_in_last_pipeline_stage=None)
    model = base.model.with_(num_layers=layers, num_dense_layers=3, mtp_num_layers=1)
    laid = base.with_(model=model, pp=pp, vpp=vpp, pipeline_model_parallel_layout=f"E{'|'.join(chunks)}L")
    whole = laid.with_(pp=1, vpp=1, pipeline_model_parallel_layout=None)
    held, alone = (
        stage_parameters(lower(table, all_stages(table))) for table in (Table.of([laid]), Table.of([whole]))
    )
    assert float(held.expert.sum()) == float(alone.expert.sum())
    embedding = model.hidden_size * float(lower(Table.of([laid])).vocab[0])
    again = embedding * (at % pp != 0)
    assert float(held.dense.sum()) == float(alone.dense.sum()) + again


def test_multi_token_prediction_sits_where_the_layout_says() -> None:
    base: dict[str, Any] = {**DEEPSEEK, "pp": 8, "vpp": 2}
    r = recipe(
        base, pipeline_model_parallel_layout="Et*5|(t*4|)*14mL", num_layers_in_last_pipeline_stage=None
    )
    table = Table.of([r])
    low = lower(table, all_stages(table))
    assert [bool(x) for x in low.mtp[0]] == [False] * 7 + [True]
    standalone = r.with_(pipeline_model_parallel_layout="Et*5|(t*4|)*13m|t*4L")
    low = lower(Table.of([standalone]), all_stages(table))
    assert [bool(x) for x in low.mtp[0]] == [False] * 6 + [True, False]


def test_a_layout_goes_out_and_comes_back() -> None:
    from shardwise.engine.frameworks import export

    r = recipe({**LLAMA, "pp": 4, "vpp": 2}, pipeline_model_parallel_layout="Et*10|(t*10|)*6t*10L")
    text = export(r, "megatron-lm").text
    assert "--pipeline-model-parallel-layout" in text
    assert "--num-virtual-stages" not in text
    back = import_config(text, from_="megatron-lm")
    assert back.recipe["pipeline_model_parallel_layout"] == r.pipeline_model_parallel_layout
    assert back.recipe["vpp"] == 2


@pytest.mark.parametrize(("stated", "vpp"), [("", 4), ("--num-virtual-stages-per-pipeline-rank 1", 1)])
def test_stated_virtual_stages_are_not_overwritten_by_a_layout(stated: str, vpp: int) -> None:
    """Megatron-Core derives them from the layout, and refuses those that differ from it."""
    from shardwise.engine.frameworks import export

    r = recipe({**LLAMA, "pp": 4, "vpp": 4}, pipeline_model_parallel_layout="Et*5|(t*5|)*14t*5L")
    back = import_config(f"{export(r, 'megatron-lm').text.rstrip()} {stated}", from_="megatron-lm")
    assert back.recipe["vpp"] == vpp
    assert any("another pipeline" in note for note in back.notes) == (vpp != 4)


def test_a_case_states_its_layout_beside_its_schedule() -> None:
    from shardwise.engine.cases.pipeline import split_fields
    from shardwise.engine.cases.reading import Case

    model = recipe(DEEPSEEK).model.with_(num_layers=14, mtp_num_layers=1)
    for schedule, expected in (
        ("interleaved-1f1b, layout Ett|(tt|)*6mL", {"pipeline_model_parallel_layout": "Ett|(tt|)*6mL"}),
        ("interleaved-1f1b, layout Ett|(tt|)*5mL", None),
        ("interleaved-1f1b", None),
    ):
        case = Case.model_validate({"id": "a", "parallel": {"pp": 4, "vpp": 2, "pp_schedule": schedule}})
        fields, layers = split_fields(case, model, 4, 2, [])
        assert layers == 14
        assert (fields == expected) == (expected is not None)
