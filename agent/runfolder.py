"""The run folder: request, trials, trace, checkpoint and result, each in one file."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from shardwise.agent.request import TuneRequest
from shardwise.engine.errors import ConfigError
from shardwise.engine.files import write_text

DEFAULT_ROOT = Path("runs")
FORMAT = 1
"""Version of ``request.json``."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths of one run, and its small files."""

    path: Path

    @property
    def request(self) -> Path:
        return self.path / "request.json"

    @property
    def trials(self) -> Path:
        return self.path / "trials.jsonl"

    @property
    def trace(self) -> Path:
        return self.path / "trace.jsonl"

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.sqlite"

    @property
    def result(self) -> Path:
        return self.path / "result.json"

    @classmethod
    def create(cls, out: str | os.PathLike[str] | None, request: TuneRequest, text: str | None) -> RunFolder:
        """A new run folder. Raises :class:`ConfigError` when ``out`` holds a run or cannot be written."""
        path = Path(out) if out is not None else _fresh(request)
        folder = cls(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as err:
            raise ConfigError(
                f"out = {str(path)!r}: cannot make the run folder: {err.strerror}", field="out"
            ) from err
        used = [p.name for p in (folder.request, folder.trials, folder.trace) if p.exists()]
        if used:
            raise ConfigError(
                f"out = {str(path)!r} holds a run already ({used[0]}); resume it, or name a new folder",
                field="out",
            )
        write_json(folder.request, {"format": FORMAT, "request": request.as_json(), "text": text})
        return folder

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> tuple[RunFolder, TuneRequest, str | None]:
        """An existing run folder with its request and the user's words. Raises :class:`ConfigError`."""
        folder = cls(Path(path))
        if not os.path.isfile(folder.request):
            raise ConfigError(
                f"resume = {str(path)!r}: no run there (request.json is missing)", field="resume"
            )
        try:
            data = json.loads(folder.request.read_text("utf-8"))
            version, request, text = data["format"], data["request"], data.get("text")
        except (OSError, ValueError, KeyError, TypeError) as err:
            raise ConfigError(
                f"resume = {str(path)!r}: request.json is damaged ({err})", field="resume"
            ) from err
        if version != FORMAT:
            raise ConfigError(
                f"resume = {str(path)!r}: request.json has format {version}, this version reads {FORMAT}",
                field="resume",
            )
        return folder, TuneRequest.build(request), text

    def read_result(self) -> dict[str, Any] | None:
        """The finished result, or None while there is none."""
        if not self.result.is_file():
            return None
        try:
            data: dict[str, Any] = json.loads(self.result.read_text("utf-8"))
        except (OSError, ValueError) as err:
            raise ConfigError(f"{self.result.name} is damaged ({err}); delete it", field="resume") from err
        return data

    @contextmanager
    def connection(self) -> Iterator[tuple[sqlite3.Connection, bool]]:
        """The checkpoint database and whether it had to be started anew.

        A database that SQLite cannot read is put aside: the trials and the trace hold all that is needed.
        """
        anew = not self.checkpoint.exists()
        try:
            connection = _connect(self.checkpoint)
        except sqlite3.DatabaseError:
            for suffix in ("", "-wal", "-shm"):
                damaged = Path(f"{self.checkpoint}{suffix}")
                if os.path.lexists(damaged):
                    damaged.replace(f"{damaged}.damaged")
            connection, anew = _connect(self.checkpoint), True
        try:
            yield connection, anew
        finally:
            connection.close()


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Write ``data`` as JSON, whole or not at all."""
    write_text(path, json.dumps(data, indent=1, allow_nan=False) + "\n")


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, check_same_thread=False, timeout=10.0)
    try:
        connection.execute("PRAGMA quick_check").fetchall()
    except sqlite3.DatabaseError:
        connection.close()
        raise
    return connection


def _fresh(request: TuneRequest) -> Path:
    """``runs/MODEL-GPUSxGPU-DATE-TIME``, with a number behind it when that is taken."""
    cluster = request.cluster
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    name = f"{request.model.name}-{cluster.world_size}x{cluster.gpu.name}-{stamp}"
    path, number = DEFAULT_ROOT / name, 1
    while path.exists():
        number += 1
        path = DEFAULT_ROOT / f"{name}-{number}"
    return path
