"""A recipe written for a framework and read back is the same recipe, for every kind of model."""

from __future__ import annotations

import ast
import subprocess
import sys
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardwise.engine import catalog
from shardwise.engine.errors import ConfigError
from shardwise.engine.frameworks import export, framework_names, import_config
from shardwise.engine.legality import check
from shardwise.engine.recipe import DISPATCHERS, DP_SHARDINGS, PRECISIONS, RECOMPUTE_MODULES, Recipe
from shardwise.engine.recipe_io import load_recipe

MODELS = (
    "llama-3-8b",
    "llama-3.1-405b",
    "mixtral-8x22b",
    "deepseek-v3",
    "deepseek-v2-lite",
    "qwen3-235b-a22b",
    "gpt-oss-120b",
    "gpt3-175b",
)
FRAMEWORKS = ("megatron-lm", "primus")
CANNOT = {
    "megatron-lm": {
        "pp_schedule",
        "moe_imbalance",
        "dp_shard_size",
        "fsdp_reshard_after_forward",
        "dp_sharding",
    },
    "primus": {
        "pp_schedule",
        "moe_imbalance",
        "dp_shard_size",
        "fsdp_reshard_after_forward",
        "dp_sharding",
        "moe_token_dispatcher",
    },
}
"""What a legal recipe may lose. ``dp_sharding``: HSDP over a single shard group is FSDP."""
WITHOUT_EFFECT = {"overlap_param_gather", "cp_comm_type", "optimizer_state_dtype", "fp8_param_gather"}
"""Fields that no flag carries while they do nothing: cp_comm_type at cp=1, moments of SGD, ..."""

powers = st.sampled_from([1, 2, 4, 8])


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    """Recipes of all kinds, most of them legal; the rest must come back just as well."""
    model = catalog.model(draw(st.sampled_from(MODELS)))
    data: dict[str, Any] = {
        "model": model.name,
        "cluster": draw(st.sampled_from(["mi355x:4x8", "h100:16x8", "gb200:18x4"])),
        "tp": draw(powers),
        "pp": draw(powers),
        "vpp": draw(st.sampled_from([1, 1, 2])),
        "cp": draw(st.sampled_from([1, 1, 2])),
        "mbs": draw(st.sampled_from([1, 2])),
        "gbs": draw(st.sampled_from([128, 256, 1024])),
        "seq_len": draw(st.sampled_from([2048, 4096])),
        "dp_sharding": draw(st.sampled_from(DP_SHARDINGS)),
        "dp_shard_size": draw(st.sampled_from([None, None, 4, 8])),
        "pp_schedule": draw(st.sampled_from(["1f1b", "1f1b", "gpipe"])),
        "precision": draw(st.sampled_from(PRECISIONS)),
        "recompute": draw(st.sampled_from(["none", "selective", "full"])),
        "main_grads_dtype": draw(st.sampled_from(["fp32", "bf16"])),
        "optimizer_state_dtype": draw(st.sampled_from(["fp32", "bf16"])),
        "optimizer": draw(st.sampled_from(["adam", "adam", "sgd"])),
        "attention_backend": draw(st.sampled_from(["flash", "unfused"])),
        "cp_comm_type": draw(st.sampled_from(["p2p", "a2a", "all_gather"])),
    }
    if model.is_moe:
        data["ep"], data["etp"] = draw(powers), draw(st.sampled_from([1, 1, 2]))
        data["moe_token_dispatcher"] = draw(st.sampled_from(DISPATCHERS))
        data["moe_imbalance"] = draw(st.sampled_from([1.0, 1.3]))
        data["moe_expert_capacity_factor"] = draw(st.sampled_from([None, None, 1.25, 1e-05]))
    if data["recompute"] == "full":
        data["recompute_method"] = draw(st.sampled_from(["uniform", "block"]))
        data["recompute_num_layers"] = draw(st.integers(0, 4))
    if data["recompute"] == "selective":
        data["recompute_modules"] = draw(st.lists(st.sampled_from(RECOMPUTE_MODULES), max_size=3))
    for name in (
        "fsdp_reshard_after_forward",
        "fp8_param_gather",
        "overlap_grad_reduce",
        "overlap_param_gather",
        "tp_comm_overlap",
        "overlap_p2p_comm",
        "overlap_moe_expert_parallel_comm",
        "cross_entropy_fusion",
        "cuda_graphs",
        "account_for_embedding_in_pipeline_split",
        "account_for_loss_in_pipeline_split",
    ):
        data[name] = draw(st.booleans())
    if draw(st.booleans()):
        data["num_layers_in_first_pipeline_stage"] = draw(st.integers(1, 9))
        data["num_layers_in_last_pipeline_stage"] = draw(st.integers(1, 9))
    return load_recipe(data)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(recipe=recipes())
def test_a_recipe_comes_back_as_it_was(framework: str, recipe: Recipe) -> None:
    exported = export(recipe, framework)
    back = import_config(exported.text)
    assert back.framework == framework
    assert load_recipe(back.recipe) == recipe
    assert back.recipe["model"] == recipe.model.name
    assert back.unknown == {}
    assert export(load_recipe(back.recipe), framework) == exported
    if not check(recipe):
        assert set(exported.cannot_say) <= CANNOT[framework] | WITHOUT_EFFECT


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("model", MODELS)
def test_a_plain_recipe_needs_no_help(framework: str, model: str) -> None:
    recipe = load_recipe(
        {"model": model, "cluster": "h100:16x8", "tp": 2, "pp": 4, "gbs": 256, "seq_len": 2048}
    )
    assert export(recipe, framework).cannot_say == ()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_model_and_a_cluster_of_ones_own_come_back(framework: str) -> None:
    base = catalog.model("mixtral-8x7b").model_dump()
    own = {
        **base,
        "name": "my model\n# shardwise: cluster=h100:1x8",
        "num_layers": 12,
        "num_dense_layers": 2,
        "moe_layer_freq": 2,
        "window_size": 4096,
        "window_attn_every": 3,
        "vocab_size": 50_000,
    }
    cluster = {"gpu": "h100", "num_nodes": 2, "gpus_per_node": 8, "oversubscription": 2.0}
    recipe = load_recipe({"model": own, "cluster": cluster, "gbs": 64, "seq_len": 4096, "ep": 8})
    exported = export(recipe, framework)
    assert load_recipe(import_config(exported.text).recipe) == recipe
    assert set(exported.cannot_say) == {"model.name", "model.source"}
    # A twin of a catalog model under another name stays itself.
    twin = load_recipe({"model": {**base, "name": "twin"}, "cluster": "h100:2x8", "gbs": 64, "seq_len": 4096})
    assert load_recipe(import_config(export(twin, framework).text).recipe).model.name == "twin"


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_model_of_the_catalog_comes_back_from_its_figures_alone(framework: str) -> None:
    for name, model in catalog.models().items():
        recipe = load_recipe({"model": name, "cluster": "h100:16x8", "gbs": 256, "seq_len": 1024})
        bare = "\n".join(
            line for line in export(recipe, framework).text.splitlines() if "shardwise:" not in line
        )
        back = load_recipe(import_config(bare, cluster="h100:16x8").recipe)
        assert back.model.model_copy(update={"name": name, "source": model.source}) == model.model_copy(
            update={"max_position_embeddings": back.model.max_position_embeddings}
        )


@given(edit=st.sampled_from(["--tensor-model-parallel-size 4", "--seq-length 1024", "--num-layers 30"]))
def test_an_edit_of_the_file_counts(edit: str) -> None:
    recipe = load_recipe({"model": "llama-3-8b", "cluster": "h100:2x8", "tp": 2, "gbs": 64, "seq_len": 2048})
    flag, value = edit.split()
    lines = export(recipe, "megatron-lm").text.splitlines()
    text = "\n".join(f"  {edit}" if line.strip().startswith(flag + " ") else line for line in lines)
    back = import_config(text)
    got = load_recipe(back.recipe)
    read = {
        "--tensor-model-parallel-size": got.tp,
        "--seq-length": got.seq_len,
        "--num-layers": got.model.num_layers,
    }
    assert read[flag] == int(value)
    assert any("num_layers" in note for note in back.notes) == (flag == "--num-layers")


def test_the_script_is_a_script(tmp_path: Any) -> None:
    recipe = load_recipe(
        {
            "model": "deepseek-v3",
            "cluster": "h100:16x8",
            "tp": 2,
            "pp": 8,
            "ep": 8,
            "etp": 1,
            "gbs": 256,
            "seq_len": 4096,
            "recompute": "selective",
        }
    )
    exported = export(recipe, "megatron-lm")
    script = tmp_path / exported.filename
    script.write_text(exported.text)
    stub = tmp_path / "torchrun"
    stub.write_text('#!/bin/sh\nprintf "%s\\n" "CONNECTIONS=$CUDA_DEVICE_MAX_CONNECTIONS" "$@"\n')
    stub.chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    out = subprocess.run(
        ["bash", str(script), "--lr", "1e-4"], env=env, capture_output=True, text=True, check=True
    )
    words = out.stdout.split("\n")
    assert words[0] == "CONNECTIONS=1"
    assert "([0]*3+[1]*58)" in words
    assert words[-3:-1] == ["--lr", "1e-4"]
    launched = subprocess.run(
        ["bash", "-c", exported.launch], env=env, capture_output=True, text=True, check=True
    )
    assert launched.stdout.split("\n")[:-1] == words[:-3]


def test_the_overlay_is_yaml_and_names_primus_presets() -> None:
    recipe = load_recipe(
        {
            "model": "mixtral-8x22b",
            "cluster": "mi355x:4x8",
            "pp": 4,
            "ep": 8,
            "gbs": 128,
            "seq_len": 8192,
            "moe_token_dispatcher": "deepep",
            "recompute": "full",
        }
    )
    exported = export(recipe, "primus")
    document = yaml.safe_load(exported.text)
    assert document["exp_name"] == "${PRIMUS_EXP_NAME:mixtral-8x22b-pretrain}"
    module = document["modules"]["pre_trainer"]
    assert (module["config"], module["framework"], module["model"]) == (
        "pre_trainer.yaml",
        "megatron",
        "mixtral_8x22B_v0.1.yaml",
    )
    overrides = module["overrides"]
    assert overrides["use_turbo_deepep"] is True
    assert overrides["expert_tensor_parallel_size"] == 1
    assert (overrides["recompute_granularity"], overrides["recompute_num_layers"]) == ("full", 1)
    assert exported.launch.endswith("slurm srun -N 4 -- train pretrain --config mixtral-8x22b.primus.yaml")


def test_a_window_is_a_pair_in_yaml_and_a_word_on_the_command_line() -> None:
    recipe = load_recipe({"model": "gpt-oss-120b", "cluster": "h100:2x8", "gbs": 64, "seq_len": 4096})
    overrides = yaml.safe_load(export(recipe, "primus").text)["modules"]["pre_trainer"]["overrides"]
    assert overrides["window_size"] == [127, 0]
    assert "--window-size 127,0" in export(recipe, "megatron-lm").text


@pytest.mark.parametrize(
    ("changes", "flags"),
    [
        ({"tp": 2}, ["--sequence-parallel"]),
        ({"vpp": 2, "pp": 4}, ["--num-virtual-stages-per-pipeline-rank 2"]),
        ({"vpp": 2, "pp": 4, "overlap_p2p_comm": False}, ["--no-overlap-p2p-communication"]),
        ({"dp_sharding": "zero1"}, ["--use-distributed-optimizer"]),
        ({"dp_sharding": "zero2"}, ["--use-megatron-fsdp", "--data-parallel-sharding-strategy optim_grads"]),
        (
            {"dp_sharding": "fsdp"},
            ["--data-parallel-sharding-strategy optim_grads_params", "--ckpt-format fsdp_dtensor"],
        ),
        ({"dp_sharding": "hsdp", "dp_shard_size": 8}, ["--num-distributed-optimizer-instances 4"]),
        ({"precision": "fp8-delayed"}, ["--bf16", "--fp8-format hybrid", "--fp8-recipe delayed"]),
        ({"precision": "mxfp8"}, ["--fp8-recipe mxfp8"]),
        ({"precision": "nvfp4"}, ["--fp4-format e2m1", "--fp4-recipe nvfp4"]),
        ({"main_grads_dtype": "bf16"}, ["--use-precision-aware-optimizer", "--main-grads-dtype bf16"]),
        (
            {"recompute": "full", "recompute_method": "block", "recompute_num_layers": 3},
            ["--recompute-granularity full", "--recompute-method block", "--recompute-num-layers 3"],
        ),
        ({"cross_entropy_fusion": True}, ["--cross-entropy-loss-fusion"]),
        ({"tp": 4}, ["--expert-tensor-parallel-size 4"]),
        (
            {"moe_token_dispatcher": "deepep"},
            ["--moe-token-dispatcher-type flex", "--moe-flex-dispatcher-backend deepep"],
        ),
    ],
)
def test_flags_are_spelled_as_megatron_spells_them(changes: dict[str, Any], flags: list[str]) -> None:
    base = {"model": "mixtral-8x22b", "cluster": "h100:4x8", "gbs": 64, "seq_len": 4096}
    written = export(load_recipe({**base, **changes}), "megatron-lm").text.splitlines()
    assert not set(flags) - {line.strip() for line in written}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"tp": 2}, "1"),
        ({"cp": 2}, "1"),
        ({"tp": 2, "dp_sharding": "fsdp"}, "8"),
        ({"tp": 2, "ep": 8, "overlap_moe_expert_parallel_comm": True}, "32"),
    ],
)
def test_the_environment_goes_with_the_recipe(changes: dict[str, Any], expected: str | None) -> None:
    base = {"model": "mixtral-8x22b", "cluster": "h100:4x8", "gbs": 64, "seq_len": 4096}
    for framework in FRAMEWORKS:
        exported = export(load_recipe({**base, **changes}), framework)
        assert exported.env.get("CUDA_DEVICE_MAX_CONNECTIONS") == expected
        assert (f"CUDA_DEVICE_MAX_CONNECTIONS={expected}" in exported.launch) == (expected is not None)


def test_a_recipe_that_would_be_refused_says_so() -> None:
    recipe = load_recipe({"model": "llama-3-8b", "cluster": "h100:1x8", "tp": 3, "gbs": 8, "seq_len": 2048})
    assert any("refuses this recipe" in note for note in export(recipe, "megatron-lm").notes)


@pytest.mark.parametrize("name", ["torchtitan", "deepspeed", "megatron-bridge", "jax"])
def test_other_frameworks_are_refused_by_name(name: str) -> None:
    recipe = load_recipe({"model": "llama-3-8b", "cluster": "h100:1x8", "gbs": 8, "seq_len": 2048})
    with pytest.raises(ConfigError, match="supported: megatron-lm, primus"):
        export(recipe, name)
    assert framework_names() == FRAMEWORKS


def test_reading_pulls_in_no_heavy_library() -> None:
    code = "import sys, shardwise.engine.frameworks; print(sorted({'torch', 'langgraph'} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ast.literal_eval(out.stdout) == []
