"""Baselines and the seed plan."""

from __future__ import annotations

import pytest
from agent_scripts import small_request

from shardwise.agent.baseline import choose_baseline
from shardwise.agent.features import AXES
from shardwise.agent.planner import MAX_PLANNED, plan, seed_budget
from shardwise.agent.request import TuneRequest
from shardwise.agent.searchspace import SearchSpace
from shardwise.agent.trial import changed, recipe_of, value_of
from shardwise.engine import legality
from shardwise.engine.errors import ConfigError
from shardwise.memory_filter import filter_recipe


def planned(request):
    baseline = choose_baseline(request)
    space = SearchSpace(request, baseline)
    return baseline, space, plan(baseline, space)


def test_own_recipe_wins_over_reference_wins_over_constructed():
    words = "tune Mixtral 8x22B on 32 MI355X"
    assert choose_baseline(TuneRequest.of(words)).origin == "reference"
    own = choose_baseline(TuneRequest.of(words, recipe={"tp": 2, "pp": 4, "ep": 8, "etp": 1, "gbs": 64}))
    assert (own.origin, own.fields["tp"], own.fields["gbs"]) == ("user", 2, 64)
    assert choose_baseline(TuneRequest.of("tune Mixtral 8x22B on 64 MI355X")).origin == "constructed"


def test_request_wins_over_the_reference():
    fields = choose_baseline(
        TuneRequest.of("tune Mixtral 8x22B on 32 MI355X, tp 2, batch 256, seq 4096")
    ).fields
    assert (fields["tp"], fields["gbs"], fields["seq_len"], fields["pp"]) == (2, 256, 4096, 4)
    assert fields["sequence_parallel"] is True


@pytest.mark.parametrize(
    ("model", "cluster"),
    [
        ("llama-3-8b", "h100:1x8"),
        ("llama-3-70b", "h100:8x8"),
        ("mixtral-8x7b", "h100:2x8"),
        ("deepseek-v3", "h100:32x8"),
    ],
)
def test_a_constructed_baseline_is_legal_and_fits(model, cluster):
    request = TuneRequest.build({"model": model, "cluster": cluster})
    recipe = recipe_of(request, choose_baseline(request).fields)
    assert not legality.check(recipe)
    assert filter_recipe(recipe, request.margin).reason(0) is None


def test_an_illegal_own_recipe_is_the_users_to_mend():
    with pytest.raises(ConfigError, match="given recipe is illegal"):
        choose_baseline(small_request(recipe={"tp": 3}))


def test_the_plan_starts_with_the_baseline_and_moves_one_axis_at_a_time():
    baseline, space, queue = planned(small_request())
    assert queue[0]["reference"]
    assert queue[0]["fields"] == baseline.fields
    assert len(queue) <= MAX_PLANNED
    for move in queue[1:]:
        names = set(changed(space.anchor, move["fields"]))
        assert names
        assert names <= set(AXES[move["axis"]]), "one axis only"
        assert not legality.check(recipe_of(small_request(), move["fields"]))
    first = [move["axis"] for move in queue[1:]]
    assert len(set(first[: len(set(first))])) == len(set(first)), "every axis once before any twice"


def test_a_baseline_that_does_not_fit_is_kept_as_reference_beside_an_anchor_that_does():
    request = TuneRequest.build(
        {"model": "llama-3-8b", "cluster": "h100:1x8", "recipe": {"mbs": 16, "gbs": 128, "seq_len": 8192}}
    )
    baseline, space, queue = planned(request)
    assert not space.fits(baseline.fields)
    assert queue[0]["reference"]
    assert queue[1]["origin"] == "constructed"
    assert space.fits(queue[1]["fields"])
    assert queue[1]["fields"]["gbs"] == 128


def test_fixed_fields_have_one_value_in_the_whole_space():
    request = small_request(fixed={"tp": 2, "recompute": "selective"})
    _, space, queue = planned(request)
    assert len(space.legal)
    assert set(space.legal.tp.tolist()) == {2}
    assert all(value_of(move["fields"], "recompute") == "selective" for move in queue)


def test_the_plan_has_half_of_the_budget():
    assert [seed_budget(calls) for calls in (1, 2, 10, 60)] == [1, 1, 5, 30]


def test_a_constructed_baseline_keeps_the_experts_near_where_a_pipeline_does_as_well() -> None:
    baseline = choose_baseline(TuneRequest.of("tune Qwen3-235B on 256 MI300X"))
    assert baseline.origin == "constructed"
    assert baseline.fields["ep"] <= 16
    assert baseline.fields["pp"] > 1


@pytest.mark.parametrize("words", ["DeepSeek V3 on 1024 MI355X", "Llama 3.1 405B on 1024 H100"])
def test_a_constructed_baseline_pipelines_layers_that_do_not_divide(words: str) -> None:
    baseline = choose_baseline(TuneRequest.of(f"tune {words}"))
    assert baseline.fields["pp"] > 2
    assert baseline.fields["num_layers_in_last_pipeline_stage"] >= 1
    assert baseline.fields.get("cp", 1) == 1


def test_a_fixed_split_of_the_layers_stays_fixed() -> None:
    words = "tune DeepSeek V3 on 1024 H100"
    fixed = {"num_layers_in_last_pipeline_stage": 5, "pp": 8}
    assert choose_baseline(TuneRequest.of(words, fixed=fixed)).fields.items() >= fixed.items()
