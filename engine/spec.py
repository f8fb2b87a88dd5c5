"""The common base of the frozen, validated types that describe a training run."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from shardwise.engine.errors import ConfigError


class Spec(BaseModel):
    """A frozen value: validated when built, equal by content, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, allow_inf_nan=False)

    @classmethod
    def build(cls, data: Any, *, where: str = "") -> Self:
        """Validate ``data``; raise one-line :class:`ConfigError` naming the field and the value."""
        try:
            return cls.model_validate(data)
        except ValidationError as err:
            raise ConfigError(one_line(err, where or cls.__name__.lower()), field=_field(err)) from err

    def with_(self, **changes: Any) -> Self:
        """A copy with ``changes`` applied and validated."""
        return type(self).build(
            {**{name: getattr(self, name) for name in type(self).model_fields}, **changes}
        )


def one_line(err: ValidationError, where: str) -> str:
    """The first complaint of a pydantic error as one line: field, value, what is allowed."""
    first = err.errors(include_url=False)[0]
    path = ".".join(str(bit) for bit in first["loc"]) or where
    message = first["msg"].removeprefix("Value error, ")
    more = f" (and {err.error_count() - 1} more)" if err.error_count() > 1 else ""
    value = first.get("input")
    shown = "" if isinstance(value, (dict, list)) or value is None else f" = {_short(value)}"
    prefix = f"{where}: " if first["loc"] else ""
    return f"{prefix}{path}{shown}: {message}{more}".replace("\n", " ")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _field(err: ValidationError) -> str | None:
    loc = err.errors(include_url=False)[0]["loc"]
    return ".".join(str(bit) for bit in loc) or None
