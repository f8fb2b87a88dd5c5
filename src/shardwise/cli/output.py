"""What goes to stdout: one JSON document, or something for people."""

from __future__ import annotations

import json
import sys
from typing import Any


def emit_json(document: Any) -> None:
    """Write ``document`` as the one JSON document of this command (no NaN, stable key order)."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def emit_text(text: str) -> None:
    """Write ``text`` as it is, with a final newline."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
