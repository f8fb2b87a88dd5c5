"""When the software of a case came out, in years: its release where stated, else its source's date."""

from __future__ import annotations

import re
from collections.abc import Iterator

from shardwise.engine.cases.reading import Case
from shardwise.engine.recipe import NEWEST_SOFTWARE

_CORE_RELEASES = {
    "0.6": 2024.3, "0.7": 2024.45, "0.8": 2024.6, "0.9": 2024.85, "0.10": 2025.1, "0.11": 2025.2,
    "0.12": 2025.35, "0.13": 2025.55, "0.14": 2025.75, "0.15": 2025.9, "0.16": 2026.1,
}  # fmt: skip
"""Megatron-Core releases -> their date (its CHANGELOG.md and tags)."""

_MLPERF = {"3.1": 2023.8, "4.0": 2024.4, "4.1": 2024.8, "5.0": 2025.4, "5.1": 2025.8}
"""MLPerf Training rounds -> their date."""

_SOURCES: tuple[tuple[str, float], ...] = (
    (r"bigscience|tr11", 2021.8),
    (r"vtrain", 2023.0),
    (r"llm-foundry|mosaicml", 2024.1),
    (r"internevo|xtuner|fms-fsdp|flashattention|llama 3 herd", 2024.1),
    (r"flagperf|efficient parallelization layouts", 2023.9),
    (r"megascale \(nsdi", 2023.8),
    (r"megascale-moe", 2025.3),
    (r"korthikanti", 2022.4),
    (r"nanotron", 2025.0),
    (r"vocabulary parallelism", 2024.8),
    (r"primus|ms-swift|colossalai|frontier|sdma|torchtune|modelzoo", 2025.7),
    (r"torchtitan", 2025.5),
    (r"examples/llama readme", 2025.5),
)
"""Sources without a date of their own -> when they were measured, by their papers or repositories."""


def software_year(case: Case, assumptions: list[str]) -> float:
    """The date of the case's software; assumed, and said so, where neither release nor source tells."""
    found = next(_dates(case), None)
    if found is None:
        assumptions.append(f"software of {NEWEST_SOFTWARE}: neither release nor source is dated")
        return NEWEST_SOFTWARE
    return min(max(found, 2018.0), 2040.0)


def _dates(case: Case) -> Iterator[float]:
    version, title = case.framework.version or "", case.source.title
    yield from _stated(version)
    core = re.search(r"(?:\bcore[_ ]?[rv]?|^)(0\.\d+)", version)
    if core and core.group(1) in _CORE_RELEASES:
        yield _CORE_RELEASES[core.group(1)]
    if torch := re.search(r"torch 2\.(\d+)", version):
        # A minor release of PyTorch every quarter, 2.0 in March 2023.
        yield 2023.2 + int(torch.group(1)) / 4
    mlperf = re.search(r"MLPerf Training v(\d\.\d)", title)
    if mlperf and mlperf.group(1) in _MLPERF:
        yield _MLPERF[mlperf.group(1)]
    yield from _stated(title)
    if paper := re.search(r"\b(2[0-9])(0[1-9]|1[0-2])\.\d{5}\b", f"{title} {case.source.url}"):
        yield _year(2000 + int(paper.group(1)), int(paper.group(2)))
    lower = title.lower()
    yield from (year for pattern, year in _SOURCES if re.search(pattern, lower))


def _stated(text: str) -> Iterator[float]:
    """Dates like 2024-12, 20260728, 25.04 or v25.10 in ``text``."""
    if found := re.search(r"\b(20[12]\d)-(0[1-9]|1[0-2])\b", text):
        yield _year(int(found.group(1)), int(found.group(2)))
    if found := re.search(r"(20[12]\d)(0[1-9]|1[0-2])[0-3]\d\b", text):
        yield _year(int(found.group(1)), int(found.group(2)))
    if found := re.search(r"(?<![\d.])v?(2[0-9])\.(0?[1-9]|1[0-2])(?!\d)", text):
        yield _year(2000 + int(found.group(1)), int(found.group(2)))


def _year(year: int, month: int) -> float:
    return round(year + (month - 0.5) / 12, 2)
