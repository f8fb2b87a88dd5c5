"""The prompt templates."""

from __future__ import annotations

import pytest

from shardwise.prompts import load
from shardwise.prompts.loader import Prompt, PromptError, available


def test_every_template_has_a_version_and_is_bounded():
    assert set(available()) >= {"system", "round", "compact", "chase"}
    for name in available():
        prompt = load(name)
        assert prompt.version >= 1
        assert len(prompt.text) < 6_000
        assert "---" not in prompt.text


def test_holes_must_all_be_filled_and_no_more():
    prompt = Prompt("p", 1, '{{a}} and {{b}}; {"json": {}}')
    assert prompt.fill(a="1", b="{{a}}") == '1 and {{a}}; {"json": {}}'
    with pytest.raises(PromptError, match="lacks b"):
        prompt.fill(a="1")
    with pytest.raises(PromptError, match="does not know c"):
        prompt.fill(a="1", b="2", c="3")


def test_an_unknown_template_is_named():
    with pytest.raises(PromptError, match="unknown prompt"):
        load("sytem")
