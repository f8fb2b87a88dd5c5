"""Numbers as people read them. The engine's units (seconds, bytes) come in, short text goes out."""

from __future__ import annotations

from shardwise.engine.units import GIB

NONE = "-"


def gib(value: float | None, *, unit: bool = True, digits: int = 1) -> str:
    """Bytes as GiB with ``digits`` decimals."""
    if value is None:
        return NONE
    return f"{value / GIB:,.{digits}f}" + (" GiB" if unit else "")


def seconds(value: float | None) -> str:
    """Seconds with three figures and the unit that suits."""
    if value is None:
        return NONE
    if value >= 100:
        return f"{value:,.0f} s"
    if value >= 1 or value == 0:
        return f"{value:.2f} s"
    return f"{value * 1e3:.1f} ms" if value >= 1e-3 else f"{value * 1e6:.0f} us"


def count(value: float | None) -> str:
    """A count or rate with thousands separators, no decimals."""
    return NONE if value is None else f"{value:,.0f}"


def percent(share: float | None) -> str:
    """A share of one as a percentage."""
    return NONE if share is None else f"{100 * share:.1f}%"


def signed_percent(value: float | None) -> str:
    """A percentage with its sign."""
    return NONE if value is None else f"{value:+.1f}%"


def word(value: object) -> str:
    """A recipe field's value in the words of the command line."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None:
        return "unset"
    if isinstance(value, (list, tuple)):
        return ",".join(str(item) for item in value) or "none"
    return str(value)
