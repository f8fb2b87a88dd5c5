"""A bag of Megatron arguments with typed, bounded look-ups that remember what was asked for.

Values come from a file, so they may be words (``"8"``), YAML scalars or lists; each look-up says what
it wants and answers with a one-line ``ConfigError`` naming the argument when it gets something else.
What nobody asked for is the file's *unknown* part.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from shardwise.engine.errors import ConfigError

_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})
_NOTHING = frozenset({"null", "none", "~", ""})
MAX_INT = 10**12


class Arguments:
    """Arguments given in a file over the framework's defaults."""

    def __init__(self, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        self.given_values = {key: _plain(value) for key, value in given.items()}
        self.defaults = defaults
        self.asked: set[str] = set()

    def given(self, key: str) -> bool:
        """Whether the file itself sets ``key`` to something."""
        return self.given_values.get(key) is not None

    def get(self, key: str) -> Any:
        """The value of ``key``, the framework's default, or None."""
        self.asked.add(key)
        value = self.given_values.get(key)
        return self.defaults.get(key) if value is None else value

    def ignore(self, keys: Iterable[str]) -> None:
        """Count ``keys`` as understood: other arguments decide them, or they do not matter here."""
        self.asked.update(keys)

    def unknown(self) -> dict[str, Any]:
        """What the file gives and nobody asked for, sorted by name."""
        return {key: self.given_values[key] for key in sorted(self.given_values) if key not in self.asked}

    def integer(self, key: str, *, minimum: int = 0) -> int | None:
        """``key`` as an int of at least ``minimum``; None when unset."""
        value = self.get(key)
        if value is None:
            return None
        number = _integer(value)
        if number is None or not minimum <= number <= MAX_INT:
            raise ConfigError(
                f"{key} = {_short(value)}: {_unset(value)}an integer of at least {minimum} is allowed",
                field=key,
            )
        return number

    def count(self, key: str) -> int | None:
        """``key`` as a positive int; None when unset."""
        return self.integer(key, minimum=1)

    def number(self, key: str) -> float | None:
        """``key`` as a float; None when unset."""
        value = self.get(key)
        if value is None:
            return None
        try:
            number = math.nan if isinstance(value, (bool, list, dict)) else float(value)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            _fail(key, value, "a number")
        return number

    def flag(self, key: str) -> bool:
        """``key`` as a bool; False when unset."""
        value = self.get(key)
        if value is None or isinstance(value, bool):
            return bool(value)
        word = str(value).strip().lower()
        if word in _TRUE:
            return True
        if word in _FALSE:
            return False
        _fail(key, value, "true or false")

    def word(self, key: str, allowed: Sequence[str] | None = None) -> str | None:
        """``key`` as a lower-case word out of ``allowed`` (any when None); None when unset or ``none``."""
        value = self.get(key)
        if value is None or isinstance(value, bool):
            return None
        if isinstance(value, (list, dict)):
            _fail(key, value, "one word")
        word = str(value).strip().lower()
        if allowed is not None and word not in allowed:
            near = difflib.get_close_matches(word, allowed, n=1, cutoff=0.3)
            hint = f"; nearest: {near[0]}" if near else ""
            raise ConfigError(f"{key} = {_short(value)}: allowed: {', '.join(allowed)}{hint}", field=key)
        return None if word in _NOTHING else word

    def words(self, key: str) -> list[str] | None:
        """``key`` as a list of words (a list, or one word with blanks or commas); None when unset."""
        value = self.get(key)
        if value is None:
            return None
        items = value if isinstance(value, list) else str(value).replace(",", " ").split()
        return [str(item).strip().lower() for item in items]


def _plain(value: Any) -> Any:
    return None if isinstance(value, str) and value.strip().lower() in _NOTHING - {"none"} else value


def _integer(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    text = str(value).strip() if isinstance(value, str) else ""
    digits = text.removeprefix("+").removeprefix("-")
    return int(text) if digits.isdecimal() and digits.isascii() and len(digits) <= 13 else None


def _unset(value: Any) -> str:
    return "the file never sets that variable; " if isinstance(value, str) and "$" in value else ""


def _fail(key: str, value: Any, what: str) -> NoReturn:
    raise ConfigError(f"{key} = {_short(value)}: {_unset(value)}{what} is allowed", field=key)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
