"""Broken rules, one paragraph each."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from shardwise.cli.render.units import word


def violations(broken: Sequence[Mapping[str, Any]]) -> Group:
    """Rule, message, who demands it, and the nearest legal values as options to type."""
    lines: list[RenderableType] = []
    for violation in broken:
        lines.append(Text(f"  {violation['rule']}", style="bold red"))
        lines.append(_indented(Text(str(violation["message"]))))
        nearest = violation.get("nearest") or {}
        if nearest:
            options = " ".join(_option(name, value) for name, value in nearest.items())
            lines.append(_indented(Text(f"try: {options}", style="green")))
        lines.append(_indented(Text(f"demanded by {violation.get('framework', 'the engine')}", style="dim")))
    return Group(*lines)


def _indented(text: Text) -> Padding:
    return Padding(text, (0, 0, 0, 4))


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
    # A layout has bars and parentheses, which a shell would read.
    return f"--{flag} {shlex.quote(word(value))}"
