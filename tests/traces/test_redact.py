"""Secrets do not reach the file; ordinary words and our own keys do."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.traces import TraceWriter, redact
from shardwise.traces.redact import MARK, is_secret_name, known_secrets, redact_text


def test_time_is_linear_in_the_text() -> None:
    took = []
    for size in (2_000, 20_000):
        began = time.process_time()
        redact_text("A-" * size, ())
        took.append(time.process_time() - began)
    assert took[1] < 50 * took[0] + 0.2  # quadratic: 100 times as long, minutes for a real reply


LEAKS = [
    ("calling with sk-proj-abcDEF123456_78", "abcDEF123456"),
    ("Incorrect API key provided: sk-ab12************wxyz.", "wxyz"),
    ("Authorization: Bearer abc.def-123456", "abc.def-123456"),
    ("authorization: bearer tokentoken1", "tokentoken1"),
    ("GET /v1beta/models?key=shortkey&alt=json", "shortkey"),
    ("api_key=hunter2", "hunter2"),
    ('{"api_key": "deadbeefdeadbeefdeadbeefdeadbeef"}', "deadbeef"),
    ("api_key: 0123456789abcdef0123456789abcdef", "0123456789abcdef"),
    ("OPENAI_API_KEY='abcd1234'", "abcd1234"),
    ("password = correct-horse", "correct-horse"),
    ("key=0123456789abcdef0123456789abcdef", "0123456789abcdef0"),
    ("AKIAIOSFODNN7EXAMPLE in us-east-1", "AKIAIOSFODNN7EXAMPLE"),
    ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "wJalrXUtn"),
    ("token hf_abcdefghijklmnop", "hf_abcdefghijklmnop"),
    ("ghp_abcdefghijklmnopqrstuvwxyz0123456789", "ghp_abc"),
    ("AIzaSyA1234567890abcdefghijklmnopqrstuv", "AIzaSyA"),
    ("https://user:pa55word@proxy:3128/", "pa55word"),
    ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl", "eyJzdWIiOiIxIn0"),
    ("-----BEGIN RSA PRIVATE KEY-----\nMIIabc\n-----END RSA PRIVATE KEY-----", "MIIabc"),
]

HARMLESS = [
    "tokens_per_s_per_gpu=3260.0",
    "prompt_tokens: 1234567890123456789012",
    "recipe key=0123456789abcdef",
    "key: tp, value: 8",
    "task-based masks: risk-free, disk-usage-of-everything",
    "hash 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "tune Mixtral 8x22B on 32 MI355X; tp=1 pp=4 ep=8",
    "the key insight: recompute frees 40 GiB",
    "http://127.0.0.1:8000/v1",
    "set OPENAI_API_KEY",
]


@pytest.mark.parametrize(("text", "secret"), LEAKS)
def test_what_looks_like_a_key_goes(text: str, secret: str) -> None:
    redacted = redact_text(text)
    assert secret not in redacted
    assert MARK in redacted
    assert redact_text(redacted) == redacted


@pytest.mark.parametrize("text", HARMLESS)
def test_ordinary_text_stays(text: str) -> None:
    assert redact_text(text) == text


@pytest.mark.parametrize(
    "name",
    [
        "api_key",
        "OPENAI_API_KEY",
        "apiKey",
        "X-Api-Key",
        "Authorization",
        "password",
        "client_secret",
        "HF_TOKEN",
        "aws_secret_access_key",
        "AWS_ACCESS_KEY_ID",
        "refresh_token",
        "token",
        "db.password",
        "GITHUB_TOKEN",
    ],
)
def test_secret_names(name: str) -> None:
    assert is_secret_name(name)
    assert redact({name: "abc", "x": [{name: 5}]}) == {name: MARK, "x": [{name: MARK}]}


@pytest.mark.parametrize(
    "name",
    [
        "key",
        "recipe_key",
        "best_key",
        "tokens",
        "tokens_per_s_per_gpu",
        "output_tokens",
        "token_dispatcher",
        "moe_token_dispatcher",
        "keys",
        "secretary",
        "max_tokens",
        "monkey",
        "PATH",
        "hash",
    ],
)
def test_ordinary_names(name: str) -> None:
    assert not is_secret_name(name)


def test_known_values_go_wherever_they_occur() -> None:
    secrets = known_secrets(
        {"OPENAI_API_KEY": "my-odd-key-9", "HF_TOKEN": "abc", "HOME": "/home/someone", "X": "my"}
    )
    assert secrets == ("my-odd-key-9",), "short values and ordinary variables are not searched for"
    data = {"a": ["see my-odd-key-9!", {"my-odd-key-9": 1}], "b": "/home/someone"}
    assert redact(data, secrets) == {"a": [f"see {MARK}!", {MARK: 1}], "b": "/home/someone"}


def test_empty_values_and_flags_under_secret_names_stay() -> None:
    assert redact({"api_key": None, "password": "", "token": True}) == {
        "api_key": None,
        "password": "",
        "token": True,
    }


def test_nothing_secret_is_in_the_file(tmp_path: Path) -> None:
    with TraceWriter(
        tmp_path / "t", secrets=["given-secret-1"], environ={"ANTHROPIC_API_KEY": "env-secret-2"}
    ) as writer:
        writer.hide("late-secret-3")
        message = {
            "content": "given-secret-1 and env-secret-2",
            "deep": [{"headers": {"authorization": "Basic x"}}],
        }
        event = writer.append(
            "llm_response", number=0, request_hash="0", message=message, model="late-secret-3"
        )
        writer.append("error", message="401: Incorrect API key sk-1234567890abcdef")
    text = (tmp_path / "t").read_text()
    for secret in ("given-secret-1", "env-secret-2", "late-secret-3", "Basic x", "sk-1234567890"):
        assert secret not in text
    assert event.model == MARK


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(json_values, st.text(min_size=8, alphabet="abcXYZ0189-_"))
def test_redaction_is_complete_and_stable(value: Any, secret: str) -> None:
    seeded = {"a": value, "b": [f"x{secret}y", {"c": secret}]}
    once = redact(seeded, [secret])
    assert secret not in repr(once["b"])
    assert redact(once, [secret]) == once
