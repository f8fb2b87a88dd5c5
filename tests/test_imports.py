"""Imports run one way between the rooms, and starting up loads nothing heavy."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = {
    "shardwise": "src/shardwise",
    "agent": "agent",
    "tools": "tools",
    "prompts": "prompts",
    "memory_filter": "memory_filter",
    "engine": "engine",
    "traces": "traces",
}
MAY_IMPORT = {
    "engine": set(),
    "prompts": set(),
    "traces": {"engine"},
    "memory_filter": {"engine"},
    "tools": {"engine", "memory_filter"},
    "agent": {"engine", "memory_filter", "tools", "prompts", "traces"},
    "shardwise": {"agent", "engine", "memory_filter", "tools", "prompts", "traces"},
}
HEAVY = {"torch", "langgraph", "langchain_core", "langchain_openai", "openai", "pydantic", "numpy", "yaml"}
FILES = [(room, path) for room, folder in ROOMS.items() for path in sorted((ROOT / folder).rglob("*.py"))]


def imported(path: Path) -> list[tuple[int, str]]:
    """Line and module of every import in a file, at any depth."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            found.append((node.lineno, node.module or ""))
            if node.module == "shardwise":
                found += [(node.lineno, f"shardwise.{alias.name}") for alias in node.names]
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_one_way(room: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {room} imports {target}"
        for owner, path in FILES
        if owner == room
        for line, name in imported(path)
        if name.startswith("shardwise.")
        and (target := name.split(".")[1]) in ROOMS
        and target not in {room, *MAY_IMPORT[room]}
    ]
    assert wrong == []


def test_every_room_has_files() -> None:
    assert {room for room, _ in FILES} == set(ROOMS)


@pytest.mark.parametrize("room", ["engine", "memory_filter", "traces", "prompts"])
def test_lower_rooms_know_no_framework(room: str) -> None:
    banned = ("langgraph", "langchain", "openai", "typer", "rich")
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for owner, path in FILES
        if owner == room
        for line, name in imported(path)
        if name.startswith(banned)
    ]
    assert wrong == []


def loaded(code: str) -> set[str]:
    """Top-level modules that are loaded after ``code`` ran in a new process."""
    report = "; import sys; sys.stderr.write(' '.join({m.partition('.')[0] for m in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code + report], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert loaded("import shardwise") & (HEAVY | {"typer", "rich"}) == set()


def test_help_loads_nothing_heavy() -> None:
    assert loaded("from shardwise.cli.main import run; run(['--help'])") & HEAVY == set()
    # typer itself parses a command's options with pydantic, so only the rest is ours to keep out.
    assert loaded("from shardwise.cli.main import run; run(['tune', '--help'])") & HEAVY <= {"pydantic"}


def test_a_projection_loads_no_agent() -> None:
    code = "import shardwise; shardwise.project({'model': 'llama-3-8b', 'cluster': 'h100:1x8', 'gbs': 64})"
    assert loaded(code) & {"torch", "langgraph", "langchain_core", "openai"} == set()
