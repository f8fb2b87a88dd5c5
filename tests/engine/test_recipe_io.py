"""Recipes in and out: defaults, exact round trips, a stable key, overrides, clear refusals."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.engine import catalog
from shardwise.engine.errors import ConfigError
from shardwise.engine.recipe import DISPATCHERS, DP_SHARDINGS, PRECISIONS, RECOMPUTE_MODULES, Recipe
from shardwise.engine.recipe_io import apply_overrides, dump_recipe, load_recipe, read_recipe_file, recipe_key

BASE: dict[str, Any] = {"model": "mixtral-8x22b", "cluster": "mi355x:4x8"}
MODELS = ("llama-3-8b", "mixtral-8x22b", "deepseek-v3", "gpt-oss-120b", "gpt3-175b")
CLUSTERS = ("mi355x:4x8", "gb200:18x4", {"gpu": "h100", "num_nodes": 2, "nic": {"latency_s": 5e-6}})


def test_shortest_recipe_is_completed() -> None:
    recipe = load_recipe(BASE)
    assert recipe.model == catalog.model("mixtral-8x22b")
    assert recipe.cluster == catalog.cluster("mi355x:4x8")
    assert (recipe.tp, recipe.dp, recipe.mbs, recipe.seq_len, recipe.gbs) == (1, 32, 1, 4096, 8 * 32)
    assert recipe.num_microbatches == 8


@pytest.mark.parametrize(
    ("sizes", "gbs"),
    [
        ({"tp": 8}, 32),
        ({"tp": 2, "pp": 4}, 32),
        ({"mbs": 2, "pp": 4}, 128),
        ({"cp": 32}, 8),
        ({"tp": 64}, 8),
        ({"tp": "8"}, 32),
    ],
)
def test_default_batch_is_eight_microbatches_for_every_rank(sizes: dict[str, Any], gbs: int) -> None:
    recipe = load_recipe({**BASE, **sizes})
    assert recipe.gbs == gbs


def test_default_sequence_stays_within_the_model() -> None:
    assert load_recipe({**BASE, "model": "gpt3-175b"}).seq_len == 2048
    assert load_recipe({**BASE, "seq_len": 8192}).seq_len == 8192


def test_none_counts_as_not_given() -> None:
    assert load_recipe({**BASE, "tp": None, "gbs": None, "recompute": None}) == load_recipe(BASE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"modle": 1}, "unknown field 'modle' (nearest: model"),
        ({"micro_batch": 2}, "unknown field 'micro_batch'"),
        ({"seq-len": 2}, "nearest: seq_len"),
        ({"model": None}, "model is missing"),
        ({"cluster": None}, "cluster is missing"),
        ({"model": "mixtral-8x23b"}, "nearest: mixtral-8x22b"),
        ({"cluster": "mi355x:4x9"}, "gpus_per_node = 9"),
        ({"tp": 0}, "tp = 0"),
        ({"tp": "two"}, "tp = 'two'"),
        ({"tp": True}, "tp = True: needs an integer"),
        ({"tp": 1.5}, "tp = 1.5"),
        ({"tp": [1]}, "tp"),
        ({"gbs": 10**12}, "gbs = 1000000000000: Input should be less"),
        ({"gbs": "9" * 5000}, "gbs"),
        ({"precision": "int8"}, "precision = 'int8'"),
        ({"recompute": "some"}, "recompute = 'some'"),
        ({"recompute_num_layers": 4}, "need recompute=full"),
        ({"moe_imbalance": float("nan")}, "moe_imbalance"),
        ({"model": {"num_layers": 4}}, "model: "),
        ({"model": 7}, "model = '7'"),
        ({"cluster": 7}, "cluster = 7"),
    ],
)
def test_refusals_are_one_line(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_recipe({**BASE, **change})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 900


def test_where_names_the_source() -> None:
    with pytest.raises(ConfigError, match=r"^mine\.yaml: tp = 0"):
        load_recipe({**BASE, "tp": 0}, where="mine.yaml")
    with pytest.raises(ConfigError, match=r"^mine\.yaml: needs a mapping"):
        load_recipe([], where="mine.yaml")  # type: ignore[arg-type]


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    data: dict[str, Any] = {
        "model": draw(st.sampled_from(MODELS)),
        "cluster": draw(st.sampled_from(CLUSTERS)),
        "precision": draw(st.sampled_from(PRECISIONS)),
        "dp_sharding": draw(st.sampled_from(DP_SHARDINGS)),
        "moe_token_dispatcher": draw(st.sampled_from(DISPATCHERS)),
        "moe_imbalance": draw(st.floats(1, 10)),
    }
    for size in ("tp", "pp", "vpp", "cp", "ep", "etp", "mbs", "gbs", "seq_len", "dp_shard_size"):
        data[size] = draw(st.none() | st.integers(1, 64))
    for flag in ("sequence_parallel", "overlap_grad_reduce", "cuda_graphs", "fp8_param_gather"):
        data[flag] = draw(st.none() | st.booleans())
    data["recompute"] = draw(st.sampled_from(["none", "selective", "full"]))
    if data["recompute"] == "full":
        data["recompute_method"] = draw(st.sampled_from([None, "uniform", "block"]))
        data["recompute_num_layers"] = draw(st.none() | st.integers(0, 9))
    elif data["recompute"] == "selective":
        data["recompute_modules"] = draw(st.lists(st.sampled_from(RECOMPUTE_MODULES), unique=True))
    return load_recipe(data)


@settings(max_examples=100)
@given(recipes())
def test_dump_reads_back_exactly(recipe: Recipe) -> None:
    data = dump_recipe(recipe)
    assert load_recipe(data) == recipe
    assert load_recipe(json.loads(json.dumps(data, allow_nan=False))) == recipe
    assert load_recipe(yaml.safe_load(yaml.safe_dump(data))) == recipe
    assert json.dumps(dump_recipe(load_recipe(data))) == json.dumps(data)


def test_dump_is_short_and_in_order() -> None:
    assert json.dumps(dump_recipe(load_recipe({**BASE, "pp": 4, "ep": 8, "gbs": 128, "seq_len": 8192}))) == (
        '{"model": "mixtral-8x22b", "cluster": "mi355x:4x8", "tp": 1, "pp": 4, "cp": 1, "ep": 8, '
        '"mbs": 1, "gbs": 128, "seq_len": 8192}'
    )


def test_dump_says_only_what_does_not_follow() -> None:
    data = dump_recipe(load_recipe({**BASE, "tp": 2, "recompute": "full"}))
    assert data["recompute"] == "full"
    assert not {"etp", "sequence_parallel", "recompute_method", "recompute_num_layers"} & set(data)
    data = dump_recipe(load_recipe({**BASE, "tp": 2, "etp": 1, "sequence_parallel": False}))
    assert (data["etp"], data["sequence_parallel"]) == (1, False)


def test_dump_of_a_changed_model_is_a_mapping() -> None:
    recipe = load_recipe({**BASE, "model": {"base": "mixtral-8x22b", "num_layers": 8}})
    data = dump_recipe(recipe)
    assert isinstance(data["model"], dict)
    assert load_recipe(data) == recipe


@settings(max_examples=50)
@given(recipes(), recipes())
def test_key_is_equal_exactly_when_the_recipe_is(one: Recipe, two: Recipe) -> None:
    assert (recipe_key(one) == recipe_key(two)) == (one == two)
    assert recipe_key(load_recipe(dump_recipe(one))) == recipe_key(one)


def test_key_does_not_depend_on_spelling_and_sees_the_hardware() -> None:
    one = load_recipe({"cluster": "32 MI355X", "model": "Mixtral 8x22B", "tp": "1"})
    assert recipe_key(one) == recipe_key(load_recipe(BASE))
    assert len(recipe_key(one)) == 16
    gpu = one.cluster.gpu
    faster = one.with_(cluster=one.cluster.with_(gpu=gpu.with_(vector_flops=gpu.vector_flops * 2)))
    assert recipe_key(faster) != recipe_key(one)
    resourced = one.with_(cluster=one.cluster.with_(gpu=gpu.with_(sources={})))
    assert recipe_key(resourced) == recipe_key(one)


def test_files(tmp_path: Path) -> None:
    recipe = load_recipe(
        {**BASE, "tp": 2, "recompute": "selective", "recompute_modules": ["moe_act", "layernorm"]}
    )
    as_yaml, as_json = tmp_path / "recipe.yaml", tmp_path / "recipe.json"
    as_yaml.write_text(yaml.safe_dump(dump_recipe(recipe)))
    as_json.write_text(json.dumps(dump_recipe(recipe)))
    assert load_recipe(read_recipe_file(as_yaml)) == load_recipe(read_recipe_file(str(as_json))) == recipe
    as_yaml.write_text("model: x\ntp: [1\n")
    with pytest.raises(ConfigError, match="broken YAML, line"):
        read_recipe_file(as_yaml)


def test_overrides() -> None:
    data = {
        **BASE,
        "recompute": "full",
        "recompute_method": "block",
        "recompute_num_layers": 3,
        "etp": 1,
        "tp": 2,
    }
    changed = apply_overrides(data, {"recompute": "none", "tp": 4, "pp": None})
    assert changed == {**BASE, "etp": 1, "tp": 4, "recompute": "none"}
    assert apply_overrides(data, {"recompute": "full"}) == data
    again = apply_overrides(data, {"recompute": "full", "recompute_num_layers": 5})
    assert again == {**data, "recompute_num_layers": 5}
    assert data["recompute_num_layers"] == 3
    load_recipe(changed)
    with pytest.raises(ConfigError, match="override: unknown field 'ttp' \\(nearest: tp"):
        apply_overrides(data, {"ttp": 1})


def test_loading_is_quick() -> None:
    load_recipe(BASE)
    best = min(_timed() for _ in range(5))
    assert best < 0.020


def _timed() -> float:
    start = time.perf_counter()
    load_recipe({**BASE, "tp": 2})
    return time.perf_counter() - start
