"""``pyproject.toml`` ships every package and every data file, and the README's commands are sound."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

import shardwise

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
TOOL = PROJECT["tool"]["setuptools"]
FOLDERS = {package: ROOT / folder for package, folder in TOOL["package-dir"].items()}


def owner(path: Path) -> tuple[str, Path]:
    """The mapped package whose folder holds ``path``."""
    return next((name, folder) for name, folder in FOLDERS.items() if folder in (path, *path.parents))


def package_of(folder: Path) -> str:
    name, root = owner(folder)
    return ".".join([name, *folder.relative_to(root).parts])


def test_every_package_is_listed() -> None:
    inits = [path for folder in FOLDERS.values() for path in folder.rglob("__init__.py")]
    assert sorted(TOOL["packages"]) == sorted(package_of(path.parent) for path in inits)


def test_every_python_file_is_in_a_package() -> None:
    listed = set(TOOL["packages"])
    strays = [
        str(path.relative_to(ROOT))
        for folder in FOLDERS.values()
        for path in folder.rglob("*.py")
        if package_of(path.parent) not in listed
    ]
    assert strays == []


def test_every_data_file_ships() -> None:
    shipped = {
        path
        for package, patterns in TOOL["package-data"].items()
        for pattern in patterns
        for path in folder_of(package).glob(pattern)
    }
    data = {
        path
        for folder in FOLDERS.values()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc") and path.name != "README.md"
    }
    assert sorted(str(path.relative_to(ROOT)) for path in data - shipped) == []


def folder_of(package: str) -> Path:
    """The folder of a package, mapped or nested in a mapped one."""
    parts = package.split(".")
    for cut in range(len(parts), 0, -1):
        folder = FOLDERS.get(".".join(parts[:cut]))
        if folder is not None:
            return folder.joinpath(*parts[cut:])
    raise AssertionError(package)


def test_the_version_is_said_once() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", shardwise.__version__)
    assert "version" in PROJECT["project"]["dynamic"]
    try:
        assert version("shardwise") == shardwise.__version__
    except PackageNotFoundError:
        pytest.skip("shardwise runs from its folders here, it is not installed")


def test_readme_has_one_test_command_and_it_needs_only_python_and_git() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    block = readme.split("<!-- test command -->")[1].split("```")[1]
    lines = [line for line in block.splitlines() if line.startswith("python3 ")]
    assert len(lines) == 1
    first_words = [part.split()[0] for part in lines[0].split("&&")]
    assert set(first_words) <= {"python3", ".venv/bin/pip", ".venv/bin/pytest"}


def test_constraints_hold_versions_and_no_addresses() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
    assert lines
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9._+!-]+", line)] == []


def test_relative_links_of_the_documents_lead_somewhere() -> None:
    documents = [ROOT / name for name in ("README.md", "CONTRIBUTING.md")] + sorted(
        (ROOT / "docs").rglob("*.md")
    )
    broken = [
        f"{document.relative_to(ROOT)}: {target}"
        for document in documents
        for target in re.findall(r"\]\(([^)#]+)", document.read_text(encoding="utf-8"))
        if not re.match(r"[a-z]+:", target) and not (document.parent / target).exists()
    ]
    assert broken == []
