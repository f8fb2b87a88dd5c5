"""Configurations that other people wrote: Megatron-LM scripts and Primus experiment files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.engine.errors import ConfigError, UnsupportedError
from shardwise.engine.frameworks import export, import_config, recognise
from shardwise.engine.frameworks.patterns import (
    format_moe_layers,
    moe_layer_fields,
    parse_moe_layers,
)
from shardwise.engine.frameworks.shell import read_script
from shardwise.engine.recipe import Recipe
from shardwise.engine.recipe_io import load_recipe

SCRIPT = r"""#!/bin/bash
# Pretrains a model; don't touch the quotes in this comment
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NNODES=4
TP=2; PP=4
EP=$((GPUS_PER_NODE * NNODES / (2 * PP)))
GBS=${GBS:-128}
CHECKPOINT_PATH=$1

DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES --node_rank 0 --master_addr localhost"
MODEL_ARGS=(
    --use-mcore-models
    --num-layers 56          # as published
    --hidden-size 6144
    --ffn-hidden-size 16384
    --num-attention-heads 48
    --group-query-attention
    --num-query-groups 8
    --kv-channels=128
    --swiglu --normalization RMSNorm --position-embedding-type rope
    --untie-embeddings-and-output-weights --disable-bias-linear
    --num-experts 8 --moe-router-topk 2
    --max-position-embeddings 8192
)
PARALLEL_ARGS=(
    --tensor-model-parallel-size ${TP}
    --pipeline-model-parallel-size "$PP"
    --expert-model-parallel-size $EP
    --sequence-parallel
)
if [ -n "${OVERLAP:-}" ]; then
    PARALLEL_ARGS+=(--overlap-grad-reduce)
fi
torchrun ${DISTRIBUTED_ARGS} pretrain_gpt.py \
    "${MODEL_ARGS[@]}" \
    ${PARALLEL_ARGS[@]} \
    --micro-batch-size 1 --global-batch-size $GBS \
    --seq-length 8192 --bf16 --use-distributed-optimizer \
    --lr 1e-4 --split 99,1,0 --save $CHECKPOINT_PATH "$@" 2>&1 | tee log.txt
"""

OVERLAY = """
work_group: ${PRIMUS_TEAM:amd}
exp_name: x
modules:
  pre_trainer:
    config: pre_trainer.yaml
    framework: megatron
    model: ${PRIMUS_MODEL:mixtral_8x22B_v0.1}.yaml
    overrides:
      train_iters: 50
      micro_batch_size: 2
      global_batch_size: ${PRIMUS_GBS:128}
      seq_length: 8192
      max_position_embeddings: 8192
      pipeline_model_parallel_size: 4
      expert_model_parallel_size: ${PRIMUS_EP:8}
      overlap_grad_reduce: ${OVERLAP:true}
      recompute_granularity: full
      recompute_method: block
      recompute_num_layers: 0
      lr: 1.0e-5
"""


def read(source: str | Path, **hints: Any) -> Recipe:
    return load_recipe(import_config(source, **hints).recipe)


def flags(extra: str = "", arch: str = "") -> str:
    arch = (
        arch
        or "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --vocab-size 32000 --kv-channels 128"
    )
    return f"{arch} --micro-batch-size 1 --global-batch-size 64 --seq-length 2048 --bf16 {extra}"


def test_a_script_with_variables_arrays_and_arithmetic() -> None:
    back = import_config(SCRIPT, cluster="h100")
    recipe = load_recipe(back.recipe)
    assert back.framework == "megatron-lm"
    assert (recipe.cluster.num_nodes, recipe.cluster.gpus_per_node, recipe.model.name) == (
        4,
        8,
        "mixtral-8x22b",
    )
    assert (recipe.tp, recipe.pp, recipe.ep, recipe.etp, recipe.gbs) == (2, 4, 4, 2, 128)
    assert recipe.sequence_parallel
    assert recipe.overlap_grad_reduce
    assert recipe.dp_sharding == "zero1"
    assert recipe.moe_token_dispatcher == "allgather"
    assert {"lr", "split", "save", "use_mcore_models"} == set(back.unknown)
    assert back.unknown["lr"] == "1e-4"
    assert any("conditionals" in note for note in back.notes)
    assert any("expert_tensor_parallel_size: not given" in note for note in back.notes)


def test_nothing_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TP", "GBS", "PRIMUS_EP", "PRIMUS_GBS", "PRIMUS_MODEL"):
        monkeypatch.setenv(name, "3")
    assert (read(SCRIPT, cluster="h100:4x8").tp, read(SCRIPT, cluster="h100:4x8").gbs) == (2, 128)
    assert (read(OVERLAY, cluster="mi355x:4x8").ep, read(OVERLAY, cluster="mi355x:4x8").gbs) == (8, 128)
    with pytest.raises(ConfigError, match="tensor_model_parallel_size = '\\$TP': the file never sets"):
        import_config(flags("--tensor-model-parallel-size $TP"), cluster="h100:1x8")


def test_nothing_is_executed(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    text = f"X=$(touch {mark})\n`touch {mark}`\n" + flags(f"--save $(touch {mark}) --load `touch {mark}`")
    assert read(text, cluster="h100:1x8").seq_len == 2048
    assert not mark.exists()


def test_an_overlay_over_a_preset() -> None:
    back = import_config(OVERLAY, cluster="mi355x:4x8")
    recipe = load_recipe(back.recipe)
    assert back.framework == "primus"
    assert back.recipe["model"] == "mixtral-8x22b"
    assert (recipe.pp, recipe.ep, recipe.etp, recipe.mbs, recipe.gbs) == (4, 8, 1, 2, 128)
    assert (recipe.recompute, recipe.recompute_method, recipe.recompute_num_layers) == ("full", "block", 0)
    assert (recipe.dp_sharding, recipe.moe_token_dispatcher) == ("zero1", "alltoall")
    assert (recipe.overlap_grad_reduce, recipe.overlap_param_gather) == (True, False)
    assert back.unknown == {"lr": 1e-05, "train_iters": 50}


def test_overlays_extend_each_other(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(OVERLAY)
    child = tmp_path / "child.yaml"
    child.write_text(
        "extends: [base.yaml, elsewhere.yaml]\n"
        "modules: {pre_trainer: {overrides: {micro_batch_size: 1, num_layers: 28, use_turbo_deepep: true}}}\n"
    )
    back = import_config(child, cluster="mi355x:4x8")
    recipe = load_recipe(back.recipe)
    assert (recipe.mbs, recipe.gbs, recipe.moe_token_dispatcher) == (1, 128, "deepep")
    assert (recipe.model.num_layers, recipe.model.name) == (28, "mixtral-8x22b-edited")
    assert any("elsewhere.yaml" in note for note in back.notes)
    child.write_text("extends: child.yaml\n")
    with pytest.raises(ConfigError, match="extends"):
        import_config(child, from_="primus", cluster="mi355x:4x8")


@pytest.mark.parametrize(
    ("extra", "field", "value"),
    [
        ("--num-layers-per-virtual-pipeline-stage 4 --pipeline-model-parallel-size 4", "vpp", 2),
        (
            "--pipeline-model-parallel-layout 'Et*7|t*9|t*9|t*7L' --pipeline-model-parallel-size 4",
            "pipeline_model_parallel_layout",
            "Et*7|(t*9|)*2t*7L",
        ),
        ("--recompute-activations", "recompute", "selective"),
        (
            "--recompute-granularity selective --recompute-modules mlp core_attn",
            "recompute_modules",
            ("core_attn", "mlp"),
        ),
        ("--fp8-format hybrid", "precision", "fp8-delayed"),
        ("--fp8-hybrid --fp8-recipe tensorwise", "precision", "fp8-tensorwise"),
        ("--grad-reduce-in-bf16", "main_grads_dtype", "bf16"),
        ("--use-megatron-fsdp", "dp_sharding", "fsdp"),
        ("--use-megatron-fsdp --num-distributed-optimizer-instances 2", "dp_shard_size", 8),
        ("--use-torch-fsdp2 --torch-fsdp2-no-reshard-after-forward", "fsdp_reshard_after_forward", False),
        ("--sequence-parallel", "sequence_parallel", False),
        ("--cp-comm-type allgather --context-parallel-size 2", "cp_comm_type", "all_gather"),
        ("--cuda-graph-impl local", "cuda_graphs", True),
        ("--attention-backend unfused", "attention_backend", "unfused"),
        ("--optimizer sgd --micro-batch-size 2", "mbs", 2),
    ],
)
def test_other_spellings(extra: str, field: str, value: object) -> None:
    assert getattr(read(flags(extra), cluster="h100:2x8"), field) == value


@pytest.mark.parametrize(
    ("extra", "word"),
    [
        ("--cpu-offloading", "cpu_offloading"),
        ("--microbatch-group-size-per-virtual-pipeline-stage 8", "microbatch_group_size"),
        ("--optimizer lion", "lion"),
        ("--cp-comm-type p2p a2a+p2p", "cp_comm_type"),
        (
            "--use-distributed-optimizer --num-distributed-optimizer-instances 2",
            "num_distributed_optimizer_instances",
        ),
        ("--fp4-format e2m1 --fp4-recipe custom", "fp4_recipe"),
    ],
)
def test_what_cannot_be_represented_is_noted(extra: str, word: str) -> None:
    assert any(word in note for note in import_config(flags(extra), cluster="h100:2x8").notes)


def test_an_unset_global_batch_and_precision_are_said() -> None:
    arch = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --vocab-size 512"
    back = import_config(f"{arch} --micro-batch-size 2 --seq-length 128", cluster="h100:1x8")
    assert load_recipe(back.recipe).gbs == 16
    assert len([note for note in back.notes if "global_batch_size" in note or "FP32" in note]) == 2


@pytest.mark.parametrize(
    ("text", "hints", "message"),
    [
        (flags(), {}, "cluster: the file does not say"),
        ("torchrun --nnodes 2 --nproc_per_node 8 p.py " + flags(), {}, "2 nodes of 8 GPUs"),
        (flags("--tensor-model-parallel-size two"), {}, "tensor_model_parallel_size = 'two'"),
        (flags("--tensor-model-parallel-size 0"), {}, "at least 1"),
        (flags("--micro-batch-size -1"), {}, "micro_batch_size = '-1'"),
        (flags("--recompute-granularity ful"), {}, "nearest: full"),
        (flags("--fp8-format e4m3 --fp8-recipe custom"), {}, "fp8_recipe = 'custom'"),
        (flags("--moe-layer-freq '__import__(1)' --num-experts 8"), {}, "moe_layer_freq"),
        (flags("--moe-layer-freq '([1]*9999999)' --num-experts 8"), {}, "moe_layer_freq"),
        (flags("--hybrid-layer-pattern M-M*"), {}, "hybrid"),
        (flags("--save 'open"), {}, "never closed"),
        (flags(arch="--bf16 --num-layers 4"), {}, "hidden_size, num_attention_heads"),
        ("A=" + "x" * 999 + "\n" + "A=$A$A$A$A\n" * 9 + flags(), {}, "expands to more"),
        ("x" * 1_000_001 + "\n", {}, "larger than"),
        ("nothing of interest\n", {}, "not recognised"),
        ("[parallelism]\ntensor_parallel_degree = 2\n", {}, "looks like torchtitan"),
        ('{"train_batch_size": 8,\n "zero_optimization": {}}', {}, "looks like deepspeed"),
        ("modules:\n  pre_trainer: {framework: maxtext, overrides: {}}\n", {"from_": "primus"}, "maxtext"),
        ("modules: [1\n", {"from_": "primus"}, "broken YAML"),
        ("modules:\n  pre_trainer: &a {overrides: *a}\n", {"from_": "primus"}, "nested too deeply"),
        ("modules: {}\n", {"from_": "primus"}, "modules"),
        (OVERLAY.replace("mixtral_8x22B_v0.1", "no_such_model"), {}, "unknown model"),
        (OVERLAY.replace("seq_length: 8192", "seq_length: [1]"), {}, "seq_length"),
        ("# shardwise: model=../../etc/passwd\n" + flags(), {}, "not a catalog name"),
        ("# shardwise: {broken\n" + flags(), {}, "not valid JSON"),
        ("no-such-file.sh", {}, "No such file"),
        (flags(), {"from_": "torchtitan"}, "supported: megatron-lm, primus"),
    ],
)
def test_bad_input_is_one_line(text: str, hints: dict[str, Any], message: str) -> None:
    needs_cluster = "cluster: the file" not in message and "nodes of" not in message
    with pytest.raises(ConfigError) as caught:
        import_config(text, **hints, **({"cluster": "h100:2x8"} if needs_cluster else {}))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_callers_model_wins_over_the_file() -> None:
    back = import_config(flags(), cluster="h100:2x8", model="llama-3-8b")
    assert back.recipe["model"] == "llama-3-8b"
    assert any("vocab_size" in note for note in back.notes)


def test_the_callers_cluster_wins_over_the_launch_line() -> None:
    back = import_config(SCRIPT, cluster="h100:2x8")
    assert load_recipe(back.recipe).world_size == 16
    assert any("the cluster counts" in note for note in back.notes)


def test_a_file_is_read_by_path_and_by_name(tmp_path: Path) -> None:
    recipe = load_recipe({"model": "llama-3-8b", "cluster": "h100:1x8", "gbs": 8, "seq_len": 2048})
    exported = export(recipe, "primus")
    path = tmp_path / exported.filename
    path.write_text(exported.text)
    assert read(path) == read(str(path)) == recipe
    assert recognise(exported.text) == "primus"
    assert recognise(flags()) == "megatron-lm"
    assert recognise("model: llama-3-8b\ncluster: h100:1x8\n") is None


def test_unsupported_is_told_apart_from_broken() -> None:
    with pytest.raises(UnsupportedError):
        import_config("x: 1\n", from_="deepspeed")


def complaint(text: str, framework: str) -> str:
    """What reading ``text`` complains of; empty when it is read. Anything but a ConfigError is a failure."""
    try:
        import_config(text, from_=framework, cluster="h100:1x8")
    except ConfigError as err:
        return str(err)
    return ""


@given(st.text(max_size=300))
def test_any_text_is_read_or_refused(text: str) -> None:
    for framework in ("megatron-lm", "primus"):
        assert "\n" not in complaint(text + "\n", framework)


SHELL = [
    "--a",
    "b",
    "$X",
    "X=1",
    "X=(",
    "(",
    ")",
    '"',
    "'",
    "\\\n",
    "\n",
    "${X[@]}",
    "$((X*2))",
    "$((",
    "#",
    ";",
    "X+=$X",
]


@given(st.lists(st.sampled_from(SHELL)))
def test_any_shell_is_read_or_refused(words: list[str]) -> None:
    text = " ".join([*words, "\n", flags()])
    assert "\n" not in complaint(text, "megatron-lm")
    assert read_script(flags()).commands


@given(st.integers(0, 20), st.integers(1, 7), st.integers(1, 61))
def test_layer_patterns_come_back(dense: int, every: int, layers: int) -> None:
    marks = tuple(i >= dense and (i - dense) % every == 0 for i in range(layers))
    text = format_moe_layers(marks)
    assert parse_moe_layers(text, layers) == marks
    fields = moe_layer_fields(marks)
    assert fields is not None
    first, step = fields["num_dense_layers"], fields["moe_layer_freq"]
    assert marks == tuple(i >= first and (i - first) % step == 0 for i in range(layers))
