"""Reading case files: lenient where sources are silent, bounded, nothing dropped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.engine.cases import Unscorable, read_cases, to_recipe
from shardwise.engine.cases.reading import MAX_LINE_CHARS
from shardwise.engine.errors import ConfigError

SAMPLE = Path(__file__).parents[1] / "data" / "cases-sample.jsonl"


def _write(tmp_path: Path, *lines: str) -> Path:
    file = tmp_path / "cases.jsonl"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def test_sample_reads_in_order_with_faulty_lines_kept() -> None:
    cases = read_cases(SAMPLE)
    assert [c.id for c in cases[:2]] == ["hand-step", "hand-tokens-rates-disagree"]
    assert cases[-2].id == "hand-broken"
    assert "hardware.gpus" in (cases[-2].fault or "")
    assert cases[-1].id == "cases-sample.jsonl:13"
    assert "not a JSON object" in (cases[-1].fault or "")
    for broken in cases[-2:]:
        read = to_recipe(broken)
        assert isinstance(read, Unscorable)
        assert read.status == "error"


def test_silence_is_allowed_and_unknown_keys_are_ignored(tmp_path: Path) -> None:
    (case,) = read_cases(
        _write(tmp_path, '{"id": "x", "someday": 1, "batch": null, "notes": null}', "", "  ")
    )
    assert case.fault is None
    assert case.batch.gbs is None
    assert case.measured.oom is None


@pytest.mark.parametrize(
    "line",
    [
        '{"id": ""}',
        "[1, 2]",
        '{"id": "x", "hardware": {"gpus": -8}}',
        '{"id": "x", "hardware": {"gpus": 1e30}}',
        '{"id": "x", "measured": {"step_time_s": NaN}}',
        '{"id": "x", "options": "many"}',
        "{" + '"a":{' * 5000,
    ],
)
def test_a_bad_line_becomes_a_fault(tmp_path: Path, line: str) -> None:
    good = '{"id": "good"}'
    cases = read_cases(_write(tmp_path, good, line, good))
    assert [bool(c.fault) for c in cases] == [False, True, False]
    assert "\n" not in (cases[1].fault or "")


def test_the_file_itself_must_be_readable(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_cases(tmp_path / "missing.jsonl")
    binary = tmp_path / "binary.jsonl"
    binary.write_bytes(b"\xff\xfe\x00{")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_cases(binary)
    with pytest.raises(ConfigError, match="longer than"):
        read_cases(_write(tmp_path, "x" * (MAX_LINE_CHARS + 10)))


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=True)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELD = st.sampled_from(
    [
        "id",
        "model",
        "hardware",
        "framework",
        "precision",
        "parallel",
        "batch",
        "recompute",
        "options",
        "measured",
    ]
)
INNER = st.sampled_from(
    ["name", "arch", "gpu", "gpus", "tp", "pp", "vpp", "dp_sharding", "gbs", "fsdp_size", "notes"]
)


@settings(max_examples=80, deadline=None)
@given(changes=st.lists(st.tuples(FIELD, INNER, JSON, st.booleans()), max_size=4))
def test_hostile_values_never_raise(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[str, str, object, bool]]
) -> None:
    data = json.loads(SAMPLE.read_text(encoding="utf-8").splitlines()[0])
    for field, inner, value, deep in changes:
        if deep and isinstance(data.get(field), dict):
            data[field][inner] = value
        else:
            data[field] = value
    file = tmp_path_factory.getbasetemp() / "hostile.jsonl"
    file.write_text(json.dumps(data) + "\n", encoding="utf-8")
    (case,) = read_cases(file)
    read = to_recipe(case)
    if isinstance(read, Unscorable):
        assert read.reason
        assert "\n" not in read.reason
