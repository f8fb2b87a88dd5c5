"""The explanation of a winner is made of projections that anybody can repeat."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwise.cli.explain import changes, write_launch
from shardwise.engine.errors import ConfigError
from shardwise.engine.projection import project
from shardwise.engine.recipe import Recipe
from shardwise.engine.recipe_io import load_recipe

BASE = {"model": "llama-3-8b", "cluster": "h100:1x8", "gbs": 64, "seq_len": 4096, "recompute": "full"}
BEST = {**BASE, "tp": 2, "mbs": 2, "recompute": "selective", "recompute_modules": ["layernorm"]}


def speed(fields: dict[str, object]) -> float:
    tokens = project(load_recipe(fields)).tokens_per_s_per_gpu
    assert tokens is not None
    return tokens


def test_the_steps_of_the_walk_lead_from_the_baseline_to_the_winner() -> None:
    product = 1.0
    for change in changes(BEST, BASE):
        product *= 1 + change["step"]["gain_pct"] / 100
    assert product == pytest.approx(speed(BEST) / speed(BASE))


def test_every_differing_field_is_in_exactly_one_change() -> None:
    named = [name for change in changes(BEST, BASE) for name in change["fields"]]
    best, base = load_recipe(BEST), load_recipe(BASE)
    differ = [name for name in Recipe.model_fields if getattr(best, name) != getattr(base, name)]
    assert sorted(named) == sorted(differ)


def test_taking_back_is_the_winner_without_the_change() -> None:
    told = {next(iter(change["fields"])): change for change in changes(BEST, BASE)}
    gain = told["mbs"]["without"]["gain_pct"]
    assert gain == pytest.approx(100 * (speed({**BEST, "mbs": 1}) / speed(BEST) - 1))


def test_the_walk_takes_another_order_rather_than_pass_an_illegal_recipe() -> None:
    base = {"model": "llama-3-8b", "cluster": "h100:1x8", "gbs": 32, "seq_len": 4096, "tp": 8, "mbs": 16}
    best = {**base, "tp": 1, "mbs": 2}
    assert not project(load_recipe({**base, "tp": 1})).legal
    told = changes(best, base)
    assert [next(iter(change["fields"])) for change in told] == ["mbs", "tp"]
    assert all("gain_pct" in change["step"] for change in told)


def test_changes_that_are_only_legal_together_are_one_step() -> None:
    moe = {"model": "mixtral-8x22b", "cluster": "mi355x:4x8", "pp": 4, "ep": 8, "gbs": 128, "seq_len": 8192}
    best = {**moe, "vpp": 7, "overlap_moe_expert_parallel_comm": True, "recompute": "none"}
    start = {**moe, "pp": 1, "ep": 32, "cluster": "mi355x:4x8"}
    start["ep"] = 8
    product = 1.0
    for change in changes(best, start):
        assert "problem" not in change["step"] or "illegal" not in change["step"]["problem"]
        product *= 1 + change["step"]["gain_pct"] / 100
    assert product == pytest.approx(speed(best) / speed(start))


def test_an_illegal_baseline_is_named() -> None:
    base = {"model": "llama-3-8b", "cluster": "h100:1x8", "gbs": 8, "seq_len": 4096, "tp": 1, "mbs": 16}
    told = changes({**base, "mbs": 1}, base)
    assert "gain_pct" not in told[0]["step"]
    assert told[0]["without"]["problem"].startswith("illegal: ")


def test_no_difference_is_no_change() -> None:
    assert changes(BASE, BASE) == []


@pytest.mark.parametrize(
    ("cluster", "framework"),
    [("h100:1x8", "megatron-lm"), ("h100:2x8", "megatron-lm"), ("mi300x:2x8", "primus")],
)
def test_the_launch_files_are_in_the_run_folder(cluster: str, framework: str, tmp_path: Path) -> None:
    launch = write_launch({**BASE, "cluster": cluster}, tmp_path)
    assert launch["framework"] == framework
    assert Path(launch["configuration"]).parent == tmp_path
    assert launch["configuration"] in launch["launch"].split()
    assert ("NODE_RANK" in launch["where"]) == (cluster.endswith(":2x8") and framework == "megatron-lm")
    assert load_recipe({**BASE, "cluster": cluster}).world_size in (8, 16)
    assert (tmp_path / "best.yaml").read_text().startswith("model: llama-3-8b\n")


def test_a_folder_that_is_gone_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        write_launch(BASE, tmp_path / "gone")
