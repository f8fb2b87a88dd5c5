"""Every published bus bandwidth, by tier, algorithm and message size, within its stated tolerance."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

_SCRIPT = Path(__file__).parents[2] / "benchmarks" / "collectives.py"


def _benchmark() -> ModuleType:
    import sys

    spec = importlib.util.spec_from_file_location("collectives_benchmark", _SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


POINTS = list(_benchmark().points())


@pytest.mark.parametrize("point", POINTS, ids=lambda p: f"{p.series}-{p.message_bytes}")
def test_within_tolerance(point: object) -> None:
    error, tolerance = point.error, point.tolerance  # type: ignore[attr-defined]
    assert abs(error) <= tolerance, point


def test_the_points_cover_the_tiers() -> None:
    series = {p.series for p in POINTS}
    for tier in ("mi300x", "h200", "h800", "h100-2x8", "b200", "gb200-nvl72", "a100", "pcie", "deepep"):
        assert any(tier in name for name in series), tier
    assert all(p.source.startswith("https://") for p in POINTS)


def test_half_of_the_points_are_close() -> None:
    errors = sorted(abs(p.error) for p in POINTS)
    assert errors[len(errors) // 2] < 0.05
