"""The LLM's tools over a hand-made bench."""

from __future__ import annotations

import json

import pytest

from shardwise.engine.errors import ConfigError
from shardwise.engine.projection import project
from shardwise.engine.recipe import Recipe
from shardwise.engine.recipe_io import load_recipe
from shardwise.tools.bench import Bench, TrialView
from shardwise.tools.propose import PROPOSE, answer_schema
from shardwise.tools.toolbox import TOOLS, langchain_tools, run_tool


@pytest.fixture(scope="module")
def bench():
    base = load_recipe(
        {"model": "llama-3-8b", "cluster": "h100:1x8", "gbs": 32, "seq_len": 4096, "dp_sharding": "fsdp"}
    )
    other = base.with_(mbs=2)
    views = [
        TrialView(f"T{i}", r.model_dump(mode="json", include={"mbs", "tp"}), project(r).as_json(), True)
        for i, r in enumerate((base, other))
    ]

    def apply(changes):
        for name in changes:
            if name not in Recipe.model_fields:
                raise ConfigError(f"{name!r} is no field that can change", field=name)
        return base.with_(**changes)

    return Bench(views, views[0], apply, 0.05, {"tp": [1, 2, 3], "mbs": [1, 2]}, ["mbs: mbs=2 +1.0%"])


def test_memory_check(bench):
    ok, said = run_tool(bench, "memory_check", {"changes": {}})
    assert ok
    assert said["legal"]
    assert said["fits"]
    assert said["peak_gib"] > 1
    ok, said = run_tool(bench, "memory_check", {"changes": {"mbs": 16, "gbs": 128}})
    assert said["fits"] is False
    assert "GiB" in said["reason"]
    ok, said = run_tool(bench, "memory_check", {"changes": {"tp": 3}})
    assert said["legal"] is False
    assert "tp*pp*cp = 3" in said["violations"][0]


def test_legal_values(bench):
    ok, said = run_tool(bench, "legal_values", {"field": "tp"})
    assert ok
    assert [entry["legal"] for entry in said["values"]] == [True, True, False]
    ok, said = run_tool(bench, "legal_values", {"field": "tpp"})
    assert not ok
    assert "nearest: tp" in said["error"]


def test_bottleneck_and_compare(bench):
    _, said = run_tool(bench, "bottleneck", {"trial": "t0"})
    shares = said["share_of_step_pct"]
    assert sum(shares.values()) == pytest.approx(100, abs=1)
    assert list(shares.values()) == sorted(shares.values(), reverse=True)
    _, said = run_tool(bench, "compare_trials", {"first": "T0", "second": "T1"})
    assert said["fields"] == {"mbs": [1, 2]}
    assert said["gain_pct"] is not None


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("nothing", {}),
        (PROPOSE, {"candidates": []}),
        ("bottleneck", {}),
        ("bottleneck", {"trial": "T9"}),
        ("bottleneck", {"trial": ["T0"]}),
        ("memory_check", {"changes": "tp=2"}),
        ("memory_check", {"changes": {"tp": "x"}}),
        ("memory_check", {"changes": {"warp": 1}}),
        ("memory_check", None),
    ],
)
def test_mistakes_are_answers(bench, name, args):
    ok, said = run_tool(bench, name, args)
    assert not ok
    assert "\n" not in said["error"]


def test_langchain_tools_run_and_their_answers_are_json(bench):
    tools = {tool.name: tool for tool in langchain_tools(bench)}
    assert list(tools) == [spec.name for spec in TOOLS]
    assert tools["read_notes"].invoke({}) == {"notes": ["mbs: mbs=2 +1.0%"]}
    json.dumps(tools["bottleneck"].invoke({"trial": "T0"}), allow_nan=False)


def test_answer_schema_admits_only_the_choices():
    schema = answer_schema({"tp": [1, 2], "pp": [4], "recompute": ["none", "full"]}, most=3)
    changes = schema["properties"]["candidates"]["items"]["properties"]["changes"]
    assert changes["properties"] == {"tp": {"enum": [1, 2]}, "recompute": {"enum": ["none", "full"]}}
    assert changes["additionalProperties"] is False
