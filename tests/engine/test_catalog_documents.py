"""Documents that somebody else wrote: read safely, bounded, each fault one line that says where."""

import io
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.engine.catalog import documents
from shardwise.engine.errors import ConfigError


def parse(text: str) -> dict[str, object]:
    return documents.parse_mapping(text, where="doc.yaml")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 450e9", 450e9),
        ("a: 1e-6", 1e-6),
        ("a: 2.5e+3", 2500.0),
        ("a: -3E2", -300.0),
        ("a: 12", 12),
        ("a: h100:4x8", "h100:4x8"),
        ("a: 1e9x8", "1e9x8"),
        ("a: none", "none"),
        ("a: null", None),
        ('{"a": 1.5}', 1.5),
        ("{a: b}", "b"),
        ("\ufeffa: 1", 1),
    ],
)
def test_values(text: str, value: object, tmp_path: Path) -> None:
    path = tmp_path / "doc.yaml"
    path.write_text(text, encoding="utf-8")
    assert documents.read_mapping(path) == {"a": value}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: [1, 2\nc: 3\n", "broken YAML, line"),
        ("a: 1\n\tb: 2\n", "line 2"),
        ("a: 1\na: 2\n", "line 2: key 'a' appears twice"),
        ('{"a": 1,\n"b": ]', "broken JSON, line 2"),
        ('{"a": ' + "9" * 5000 + "]", "broken JSON"),
        ('{"a": 1, "a": 2}', "key 'a' appears twice"),
        ("a: !!python/object/apply:os.system ['true']", "could not determine a constructor"),
        ("- 1\n- 2\n", "needs a mapping of fields to values, got a list"),
        ("", "got nothing"),
        ("just words", "got a str"),
        ("1: 2", "key 1 is not text"),
        ("a: {? [1]: 2}", "YAML"),
        ("a: 2024-99-99", "YAML"),
        ("a: !!bool x", "broken YAML"),
        ("a: !!timestamp x", "broken YAML"),
        ("a: *b", "undefined alias"),
        ("a: &b {c: *b}", "nested too deeply"),
        ("a: " + "[" * 100 + "]" * 100, "nested too deeply"),
        ("a: " + "[" * 50_000, "YAML"),
        ("a: " + "{b: " * 50_000, "YAML"),
        ("- " * 50_000 + "1", "YAML"),
        ("\n".join("  " * i + "a:" for i in range(3000)), "YAML"),
        ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deeply"),
        (
            "\n".join(["a: &a0 [x, x]"] + [f"k{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 30)]),
            "more than the",
        ),
    ],
)
def test_faults_are_one_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_too_large_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    path = tmp_path / "big.yaml"
    path.write_bytes(b"a: 1\n" + b"#" * documents.MAX_BYTES)
    with pytest.raises(ConfigError, match="larger than the 5,000,000 bytes"):
        documents.read_mapping(path)


def test_a_json_file_is_json_alone(tmp_path: Path) -> None:
    path = tmp_path / "recipe.json"
    path.write_text('{"a": 1,\n"b": }')
    with pytest.raises(ConfigError, match="broken JSON, line 2"):
        documents.read_mapping(path)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        documents.read_mapping(tmp_path)


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"tp: 4\n")))
    assert documents.read_mapping("-") == {"tp": 4}
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"tp: [\n")))
    with pytest.raises(ConfigError, match="standard input: broken YAML"):
        documents.read_mapping("-")


@given(st.text(max_size=80) | st.text(alphabet="{}[]:,-&*!|>'\"#?% \n\tab1", max_size=60))
def test_any_text_is_a_mapping_or_one_clear_line(text: str) -> None:
    try:
        assert isinstance(parse(text), dict)
    except ConfigError as err:
        assert len(str(err).splitlines()) == 1  # noqa: PT017 - either outcome is right
