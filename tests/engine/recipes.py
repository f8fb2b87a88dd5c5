"""Recipes that several engine tests start from."""

from __future__ import annotations

from typing import Any

from shardwise.engine.recipe import Recipe
from shardwise.engine.recipe_io import load_recipe

MIXTRAL: dict[str, Any] = {
    "model": "mixtral-8x22b",
    "cluster": "mi355x:4x8",
    "tp": 1,
    "pp": 4,
    "ep": 8,
    "mbs": 1,
    "gbs": 128,
    "seq_len": 8192,
}
LLAMA: dict[str, Any] = {
    "model": "llama-3-70b",
    "cluster": "h100:8x8",
    "tp": 4,
    "pp": 4,
    "cp": 1,
    "mbs": 1,
    "gbs": 128,
    "seq_len": 8192,
}
DEEPSEEK: dict[str, Any] = {
    "model": "deepseek-v3",
    "cluster": "h100:128x8",
    "tp": 1,
    "pp": 16,
    "ep": 64,
    "mbs": 1,
    "gbs": 8192,
    "seq_len": 4096,
    "num_layers_in_first_pipeline_stage": 3,
    "num_layers_in_last_pipeline_stage": 2,
    "recompute": "full",
}


def recipe(base: dict[str, Any], **changes: Any) -> Recipe:
    """``base`` with ``changes``."""
    return load_recipe({**base, **changes})
