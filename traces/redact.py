"""Secrets out, before anything is written: by name, by known value, by shape.

1. A value under a telling key (``api_key``, ``Authorization``, ``password``, ...) goes whole.
2. Known values (the contents of secret environment variables, the key in use) go wherever they occur.
3. What looks like a key (``sk-...``, ``Bearer ...``, ``hf_...``, ``AKIA...``, ``?key=...``) goes too.

Redacting twice changes nothing, so hashes of redacted text are stable.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

MARK = "[redacted]"
"""What stands where a secret stood."""

MIN_SECRET = 6
"""Shortest known value that is searched for: shorter ones ("none", "test") would blot out ordinary text."""

_SECRET_NAME = re.compile(
    r"(?:^|[_\-.])(?:api[_-]?key|apikey|x-api-key|secret|secret[_-]?key|secret[_-]?access[_-]?key|client[_-]?secret"
    r"|private[_-]?key|access[_-]?key(?:[_-]?id)?|password|passwd|passphrase|authorization|proxy-authorization"
    r"|cookie|set-cookie|(?:access|refresh|auth|bearer|id|session|hf|github|api)[_-]?token|credentials?)$|^token$",
    re.IGNORECASE,
)

_SHAPES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S), MARK),
    # scheme://user:password@host
    (re.compile(r"(?<=://)([^/\s:@]+):[^/\s@]+(?=@)"), rf"\1:{MARK}"),
    (re.compile(r"\b(Bearer|Basic)\s+(?!\[redacted\])[A-Za-z0-9._~+/\-]{8,}=*", re.I), rf"\1 {MARK}"),
    # api_key = VALUE, "api_key": "VALUE", password: VALUE
    (
        re.compile(
            r"(?i)\b((?:[A-Z0-9]+[_-])*(?:api[_-]?key|apikey|secret(?:[_-]?(?:access[_-]?)?key)?|client[_-]?secret"
            r"|password|passwd|access[_-]?token|auth[_-]?token|refresh[_-]?token|hf[_-]?token)"
            r"[\"']?\s*[=:]\s*[\"']?)(?!\[redacted\])[^\s\"',;&)}\]]{4,}"
        ),
        rf"\1{MARK}",
    ),
    # a bare key=/token= only in a query string, or when the value is longer than our own 16-digit keys
    (re.compile(r"(?i)([?&](?:key|token|sig|signature)=)(?!\[redacted\])[^\s&\"'#]+"), rf"\1{MARK}"),
    (
        re.compile(r"(?i)(\b(?:key|token)\s*[=:]\s*[\"']?)(?!\[redacted\])[A-Za-z0-9_\-./+]{20,}"),
        rf"\1{MARK}",
    ),
    (re.compile(r"\b(?:sk|pk|rk)-[A-Za-z0-9_\-*]{8,}"), MARK),
    (re.compile(r"\bhf_[A-Za-z0-9]{8,}"), MARK),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b"), MARK),
    (re.compile(r"\bAIza[A-Za-z0-9_\-]{20,}"), MARK),
    (
        re.compile(r"\b(?:ghp|gho|ghu|ghs|ghr|github_pat|glpat|xox[abprs]|gsk|nvapi)[_-][A-Za-z0-9_\-]{10,}"),
        MARK,
    ),
    (re.compile(r"\beyJ[A-Za-z0-9_\-]{8,}\.eyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]*"), MARK),
)


def known_secrets(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The values of the environment variables whose names say that they are secret, longest first."""
    values = {value for name, value in environ.items() if is_secret_name(name) and len(value) >= MIN_SECRET}
    return tuple(sorted(values, key=lambda value: (-len(value), value)))


def is_secret_name(name: str) -> bool:
    """Whether a field or variable of this name holds a secret (``OPENAI_API_KEY``: yes; ``recipe_key``:
    no)."""
    return _SECRET_NAME.search(name) is not None


def redact_text(text: str, secrets: Iterable[str] = ()) -> str:
    """``text`` without known and key-like secrets."""
    for secret in secrets:
        if len(secret) >= MIN_SECRET:
            text = text.replace(secret, MARK)
    for shape, instead in _SHAPES:
        text = shape.sub(instead, text)
    return text


def redact(value: Any, secrets: Iterable[str] = ()) -> Any:
    """A copy of plain JSON data without secrets, at any depth, in keys' values and inside strings."""
    hidden = tuple(secrets)
    if isinstance(value, str):
        return redact_text(value, hidden)
    if isinstance(value, Mapping):
        return {
            redact_text(str(key), hidden): MARK
            if is_secret_name(str(key))
            and isinstance(item, (str, int, float))
            and not isinstance(item, bool)
            and item
            else redact(item, hidden)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [redact(item, hidden) for item in value]
    return value
