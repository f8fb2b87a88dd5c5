"""Writing a file whole or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from shardwise.engine.errors import ConfigError


def write_text(path: Path, text: str, *, field: str = "out") -> None:
    """Write ``text`` (UTF-8) to a temporary file beside ``path``, sync it, and rename it over.

    Raises :class:`ConfigError` where the folder is missing or not writable.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as err:
        with suppress(OSError):
            temporary.unlink()
        raise ConfigError(
            f"{field} = {str(path)!r}: cannot be written ({err.strerror})", field=field
        ) from err
