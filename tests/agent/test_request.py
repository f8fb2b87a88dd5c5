"""Requests in words and in fields."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.agent.request import TuneRequest, parse_request
from shardwise.engine.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("tune Mixtral 8x22B on 32 MI355X", {"model": "Mixtral 8x22B", "cluster": "mi355x:4x8"}),
        ("tune Mixtral 8x22B on 4x8 H100", {"model": "Mixtral 8x22B", "cluster": "h100:4x8"}),
        ("Tune mixtral-8x22b on mi355x:4x8.", {"model": "mixtral-8x22b", "cluster": "mi355x:4x8"}),
        ("please find the fastest recipe for llama-3-70b on 64 H100 GPUs", {"cluster": "h100:8x8"}),
        ("tune DeepSeek V3 on 128 nodes of 8 H100", {"cluster": "h100:128x8"}),
        ("tune llama-3-8b with 8 NVIDIA H100 SXM GPUs", {"cluster": "h100:1x8"}),
        ("tune llama-3-8b on 8 h100, llama 3 8b", {"model": "llama 3 8b"}),
        ("tune llama-3-8b on 8 h100 with sequence length 8192", {"seq_len": 8192}),
        ("tune llama-3-8b on 8 h100 with 32k context", {"seq_len": 32768}),
        ("tune llama-3-8b on 8 h100, batch 128", {"gbs": 128}),
        ("tune llama-3-8b on 8 h100 with a global batch size of 256", {"gbs": 256}),
        ("tune llama-3-8b on 8 h100, tp 1", {"fixed": {"tp": 1}}),
        ("tune llama-3-8b on 8 h100, keep tp=1 and pp=2", {"fixed": {"tp": 1, "pp": 2}}),
        ("tune llama-3-8b on 8 h100, micro batch size 2", {"fixed": {"mbs": 2}}),
        ("tune llama-3-8b on 8 h100 with no recompute", {"fixed": {"recompute": "none"}}),
        ("tune llama-3-8b on 8 h100 without recomputation", {"fixed": {"recompute": "none"}}),
        ("tune llama-3-8b on 8 h100 with full activation recomputation", {"fixed": {"recompute": "full"}}),
        ("tune llama-3-8b on 8 h100 in fp8", {"fixed": {"precision": "fp8"}}),
        ("tune llama-3-8b on 8 h100, allow fp8", {"allow_precision": ("fp8",)}),
        ("tune llama-3-8b on 8 h100 with fsdp", {"fixed": {"dp_sharding": "fsdp"}}),
        ("tune mixtral-8x7b on 16 h100 with expert parallel size 8", {"fixed": {"ep": 8}}),
        ("tune mixtral-8x7b on 16 h100, etp 1, ep 4", {"fixed": {"etp": 1, "ep": 4}}),
        ("tune llama-3-8b on 8 h100 within 30 minutes", {"budget_time_s": 1800.0}),
        ("tune llama-3-8b on 8 h100 in 40 trials", {"budget_calls": 40}),
    ],
)
def test_phrases(text, fields):
    parsed = parse_request(text)
    assert parsed.unparsed == ()
    assert {name: parsed.fields[name] for name in fields} == fields
    TuneRequest.of(text)


def test_what_is_not_understood_is_echoed():
    parsed = parse_request("tune llama-3-8b on 8 h100 using unicorn dust")
    assert parsed.unparsed == ("unicorn", "dust")
    assert TuneRequest.of("tune llama-3-8b on 8 h100 using unicorn dust").model.name == "llama-3-8b"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tune mixtrol-8x22b on 32 mi355x", "mixtral-8x22b"),
        ("tune llama-3-8b on 32 mi356x", "mi355x"),
        ("tune llama-3-8b on 12 h100", "h100:"),
        ("tune llama-3-8b", "cluster is missing"),
        ("", "model is missing"),
        ("tune llama-3-8b and mixtral-8x7b on 16 h100", "2 models"),
        ("tune llama-3-8b on 8 h100 and 16 mi300x", "two clusters"),
        ("tune llama-3-8b on -8 h100", "out of range"),
        ("tune llama-3-8b on 8.5 h100", "not understood"),
        ("tune llama-3-8b on 8 h100, not tp 2", "'not' is not understood"),
        ("tune llama-3-8b on 8 h100, no fp8", "'no' is not understood"),
        ("tune llama-3-8b on 8 h100, batch 99999999999999999999", "gbs"),
        ("tune llama-3-8b on 8 h100, tp 99999999999999999999", "tp"),
        ("tune mixtral 8x7b " * 1000, "too many"),
        ("tune 7b" + "x" * 1900 + " on 8 h100", "unknown model '7bxxx"),
    ],
)
def test_one_line_errors_name_the_nearest(text, message):
    with pytest.raises(ConfigError) as caught:
        TuneRequest.of(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_explicit_fields_win_over_words():
    request = TuneRequest.of("tune llama-3-8b on 8 h100, batch 64, tp 2", gbs=128, fixed={"pp": 2})
    assert request.gbs == 128
    assert request.fixed == {"pp": 2, "tp": 2}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"fixed": {"tpp": 1}}, "nearest: tp"),
        ({"fixed": [1]}, "fixed"),
        ({"recipe": "x"}, "recipe"),
        ({"allow_precision": 3}, "allow_precision"),
        ({"fixed": {"tp": 0}}, "tp"),
        ({"fixed": {"recompute": "some"}}, "recompute"),
        ({"fixed": {"gbs": 8}, "gbs": 16}, "contradicts"),
        ({"budget_calls": 0}, "budget_calls"),
        ({"margin": 1.5}, "margin"),
        ({"objective": "happiness"}, "objective"),
        ({"allow_precision": ["int3"]}, "precision"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_bad_fields(fields, message):
    with pytest.raises(ConfigError, match=message):
        TuneRequest.build({"model": "llama-3-8b", "cluster": "h100:1x8", **fields})


def test_json_round_trip():
    request = TuneRequest.of(
        "tune Mixtral 8x22B on 32 MI355X, tp 1, allow fp8", seed=3, recipe={"tp": 1, "pp": 4}
    )
    assert TuneRequest.build(request.as_json()) == request
    assert request.as_json()["model"] == "mixtral-8x22b"


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=80))
def test_any_text_is_a_partial_request_or_a_config_error(text):
    try:
        said = " ".join(parse_request(text).unparsed)
    except ConfigError as err:
        said = str(err)
    assert "\n" not in said
