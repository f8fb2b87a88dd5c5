"""Broken rules, one paragraph each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from shardwise.cli.render.units import word


def violations(broken: Sequence[Mapping[str, Any]]) -> Group:
    """Rule, message, who demands it, and the nearest legal values as options to type."""
    lines: list[RenderableType] = []
    for violation in broken:
        text = Text.assemble(("  " + str(violation["rule"]), "bold red"), f"  {violation['message']}")
        nearest = violation.get("nearest") or {}
        if nearest:
            options = " ".join(_option(name, value) for name, value in nearest.items())
            text.append(f"\n    nearest legal: {options}", style="green")
        text.append(f"\n    demanded by {violation.get('framework', 'the engine')}", style="dim")
        lines.append(text)
    return Group(*lines)


def legal(document: Mapping[str, Any], *, head: RenderableType | None = None) -> Group:
    """The whole answer of ``shardwise legal``."""
    parts: list[RenderableType] = [head, Text()] if head is not None else []
    if document["legal"]:
        return Group(*parts, Text("legal: no rule is broken", style="bold green"))
    n = len(document["violations"])
    title = Text(f"illegal: {n} rule{'s' if n > 1 else ''} broken", style="bold red")
    return Group(*parts, title, violations(document["violations"]))


def _option(name: str, value: object) -> str:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    return f"--{flag} {word(value)}"
