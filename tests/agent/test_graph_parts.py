"""The graph's parts: oracle, proposals from outside, the graph run alone, state bounds."""

from __future__ import annotations

import json

import pytest
from agent_scripts import small_request
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.agent.graph import build_graph, graph
from shardwise.agent.oracle import Oracle
from shardwise.agent.proposals import MAX_CANDIDATES, find_json, read_proposals
from shardwise.agent.request import TuneRequest
from shardwise.agent.state import TuneState
from shardwise.agent.trial import changed, fields_of, recipe_of
from shardwise.engine.errors import ConfigError
from shardwise.engine.projection import ENGINE_VERSION, project
from shardwise.engine.recipe_io import load_recipe

REQUEST = TuneRequest.build({"model": "llama-3-8b", "cluster": "h100:1x8"})
BASE = fields_of(
    load_recipe({"model": "llama-3-8b", "cluster": "h100:1x8", "tp": 2, "gbs": 32, "seq_len": 4096})
)
BF16 = frozenset({"bf16"})


def test_the_oracle_scores_once_and_remembers_across_objects(tmp_path):
    path = tmp_path / "trials.jsonl"
    recipe = recipe_of(REQUEST, BASE)
    first = Oracle(REQUEST, project, engine_version=ENGINE_VERSION, path=path)
    trial = first.score(recipe)
    assert first.score(recipe) is trial
    assert first.calls == 1
    second = Oracle(REQUEST, project, engine_version=ENGINE_VERSION, path=path)
    assert second.score(recipe) == trial
    assert list(second.get(trial.key).fields) == list(trial.fields)
    assert second.calls == 0
    other = Oracle(REQUEST, project, engine_version="another", path=path)
    assert other.known(trial.key) is None, "scores of another engine version are not comparable"


def test_a_damaged_trials_file_is_named_with_its_line(tmp_path):
    path = tmp_path / "trials.jsonl"
    path.write_text('{"engine": "x"}\n')
    with pytest.raises(ConfigError, match=r"trials.jsonl, line 1"):
        Oracle(REQUEST, project, engine_version=ENGINE_VERSION, path=path)


def test_fields_mean_the_same_recipe():
    for extra in ({}, {"tp": 4, "sequence_parallel": False}, {"recompute": "full"}, {"precision": "fp8"}):
        recipe = load_recipe(
            {"model": "mixtral-8x7b", "cluster": "h100:1x8", "gbs": 32, "seq_len": 4096, **extra}
        )
        request = small_request(model="mixtral-8x7b")
        assert recipe_of(request, fields_of(recipe)) == recipe
        assert changed(fields_of(recipe), fields_of(recipe)) == {}


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
FIELD = st.sampled_from(
    ["tp", "mbs", "recompute", "overlap_grad_reduce", "recompute_modules", "precision", "x"]
)


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(
        ANY_JSON,
        st.fixed_dictionaries(
            {
                "candidates": st.lists(
                    st.fixed_dictionaries({"changes": st.dictionaries(FIELD, ANY_JSON, max_size=3)})
                )
            }
        ),
    )
)
def test_no_proposal_crashes_and_every_candidate_is_a_recipe(raw):
    found, problems = read_proposals(raw, BASE, REQUEST, precisions=BF16)
    assert len(found) <= MAX_CANDIDATES
    for candidate in found:
        recipe = recipe_of(REQUEST, candidate["fields"])
        assert recipe.precision == "bf16"
        assert recipe.gbs == 32
        json.dumps(candidate, allow_nan=False)
    assert all(problem and "\n" not in problem for problem in problems)


@pytest.mark.parametrize("value", ["4", True, 4.5, [4], {"n": 4}, 0, -1, 10**30])
def test_wrong_types_are_problems_not_guesses(value):
    found, problems = read_proposals(
        {"candidates": [{"changes": {"mbs": value}}]}, BASE, REQUEST, precisions=BF16
    )
    assert not found
    assert problems[0].startswith("candidate 1: mbs")


def test_what_hangs_on_a_change_follows_it():
    raw = {"candidates": [{"changes": {"tp": 1}}, {"changes": {"recompute": "full"}}]}
    found, problems = read_proposals(raw, BASE, REQUEST, precisions=BF16)
    assert not problems
    assert found[0]["fields"]["sequence_parallel"] is False
    assert found[1]["fields"]["recompute_method"] == "uniform"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('x {"a": 1} y', {"a": 1}),
        ("```json\n[1, 2]\n```", [1, 2]),
        ("{broken", None),
        ("", None),
        ("[" * 5000, None),
    ],
)
def test_json_is_found_in_prose(text, value):
    assert find_json(text) == value


def test_the_graph_runs_alone_from_words():
    state = graph.invoke({"request": "tune llama-3-8b on 8 h100 in 5 trials"})
    assert state["result"]["oracle_calls"] == 5
    assert state["result"]["best"]
    with pytest.raises(ConfigError, match="no request"):
        graph.invoke({"round": 0})


def test_the_module_stands_for_its_graph():
    import shardwise.agent

    assert set(shardwise.agent.graph.get_graph().nodes) == set(build_graph().get_graph().nodes)


def test_every_state_key_is_declared_and_plain():
    state = graph.invoke({"request": "tune llama-3-8b on 8 h100 in 12 trials"})
    assert set(state) <= set(TuneState.__annotations__)
    json.dumps(state, allow_nan=False)
    assert len(json.dumps(state)) < 20_000
