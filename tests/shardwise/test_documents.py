"""What the documents show is what the product does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import shardwise
from shardwise.cli.main import run
from shardwise.engine import catalog
from shardwise.engine.catalog.documents import parse_mapping

ROOT = Path(__file__).resolve().parents[2]
FILES = (ROOT / "docs" / "files.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```yaml\n# (\w+)[^\n]*\n(.*?)```", FILES, re.DOTALL)


@pytest.mark.parametrize(("kind", "text"), BLOCKS, ids=[f"{n}-{kind}" for n, (kind, _) in enumerate(BLOCKS)])
def test_every_file_in_the_documents_is_accepted(
    kind: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"{kind}.yaml"
    path.write_text(text, encoding="utf-8")
    line = {
        "recipe": ["legal", str(path)],
        "cluster": ["legal", "--model", "llama-3-8b", "--cluster", str(path)],
        "model": ["legal", "--cluster", "h100:1x8", "--model", str(path)],
    }[kind]
    assert run(line) == 0, capsys.readouterr().err


def test_a_gpu_of_your_own_differs_where_it_says() -> None:
    text = next(text for kind, text in BLOCKS if "base: h200" in text)
    own, known = catalog.cluster(parse_mapping(text, where="docs")).gpu, catalog.gpu("h200")
    assert (own.name, own.memory_bytes, own.fabric.domain_size) == ("h200-double", 280e9, 16)
    assert own.fabric.bandwidth_bytes_per_s == known.fabric.bandwidth_bytes_per_s


def test_every_link_leads_somewhere() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_readme_shows_what_this_engine_says() -> None:
    example = README[README.index("<!-- example output") : README.index("How to read it")]
    fields: dict[str, Any] = {"model": "mixtral-8x22b", "cluster": "mi355x:4x8"}
    settings = example[example.index("Recipe\n") : example.index("best  ")]
    for name, value in re.findall(r"(\w+)=(\S+)", settings):
        fields[name] = yaml.safe_load(value)
    found = shardwise.project(fields)
    assert found.memory is not None
    rate, peak = f"{found.tokens_per_s_per_gpu:,.0f}", f"{found.memory.peak_bytes / 1024**3:.1f} GiB"
    assert f"{rate} tokens/s/GPU" in example, f"renew the README's example: now {rate} tokens/s/GPU"
    assert re.search(rf"peak memory +{re.escape(peak)}", example), f"renew the README's example: now {peak}"
