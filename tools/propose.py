"""The answer's shape: what ``propose`` takes, and the JSON schema for models that answer without tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

PROPOSE = "propose"
"""Name of the tool that ends a round."""


class ProposedCandidate(BaseModel):
    """One recipe to try, as a difference from the incumbent."""

    model_config = ConfigDict(extra="ignore")

    changes: dict[str, Any] = Field(description="Recipe field -> new value; only fields that differ.")
    rationale: str = Field(default="", description="One sentence: the cause of the gain.")
    expected_gain_pct: float | None = Field(
        default=None, description="Expected throughput gain over the incumbent, %."
    )


class Proposals(BaseModel):
    """The candidates of one round."""

    candidates: list[ProposedCandidate] = Field(description="3 to 5 recipes to try next.")


def answer_schema(choices: Mapping[str, Sequence[Any]], *, most: int) -> dict[str, Any]:
    """A JSON schema that lets a model choose only among ``choices`` (recipe field -> values).

    It is small on purpose: servers turn it into a grammar. What it admits is validated again all the same.
    """
    changes = {
        "type": "object",
        "properties": {name: {"enum": list(values)} for name, values in choices.items() if len(values) > 1},
        "additionalProperties": False,
    }
    candidate = {
        "type": "object",
        "properties": {
            "changes": changes,
            "rationale": {"type": "string", "maxLength": 120},
            "expected_gain_pct": {"type": "integer"},
        },
        "required": ["changes", "rationale", "expected_gain_pct"],
        "additionalProperties": False,
    }
    return {
        "title": "Proposals",
        "type": "object",
        "properties": {"candidates": {"type": "array", "items": candidate, "minItems": 1, "maxItems": most}},
        "required": ["candidates"],
        "additionalProperties": False,
    }
