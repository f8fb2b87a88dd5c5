"""``import shardwise`` gives the commands as functions, lazily."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import shardwise
from shardwise.engine.errors import ConfigError

FIELDS = {"model": "llama-3-8b", "cluster": "h100:1x8", "tp": 2, "gbs": 64, "seq_len": 4096}


def test_every_public_name_is_there() -> None:
    assert [name for name in shardwise.__all__ if not hasattr(shardwise, name)] == []
    assert set(shardwise.__all__) <= set(dir(shardwise))
    with pytest.raises(AttributeError, match="no_such_name"):
        shardwise.no_such_name  # noqa: B018


def test_the_compiled_graph_is_reached_from_the_package() -> None:
    code = "import shardwise; print(hasattr(shardwise.agent.graph.graph, 'invoke'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_a_recipe_in_any_spelling(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("".join(f"{name}: {value}\n" for name, value in FIELDS.items()))
    recipe = shardwise.api.recipe_of(FIELDS)
    assert isinstance(recipe, shardwise.Recipe)
    assert isinstance(recipe.model, shardwise.Model)
    assert isinstance(recipe.cluster, shardwise.Cluster)
    projections = [shardwise.project(spelling) for spelling in (recipe, FIELDS, path, str(path))]
    assert all(projection == projections[0] for projection in projections)


def test_keywords_win_over_the_recipe() -> None:
    assert shardwise.project(FIELDS, tp=4) == shardwise.project({**FIELDS, "tp": 4})
    recipe = shardwise.api.recipe_of({**FIELDS, "recompute": "full"})
    assert shardwise.memory(recipe, recompute="none") == shardwise.memory(FIELDS)


def test_legal_is_true_when_legal() -> None:
    assert shardwise.legal(FIELDS)
    verdict = shardwise.legal(FIELDS, tp=3)
    assert not verdict
    assert verdict.as_json()["violations"][0]["rule"]


def test_memory_of_an_illegal_recipe_is_an_error() -> None:
    with pytest.raises(ConfigError, match="illegal recipe"):
        shardwise.memory(FIELDS, tp=3)


def test_an_unknown_field_is_an_error() -> None:
    with pytest.raises(shardwise.ShardwiseError, match="mbs"):
        shardwise.project(FIELDS, msb=2)
