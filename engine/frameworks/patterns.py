"""Megatron's two little layer languages: the 0/1 pattern of MoE layers and the pipeline layout.

``--moe-layer-freq "([0]*3+[1]*58)"`` is a Python list expression that Megatron evaluates; here it is
parsed by hand, with a bound on its length, so that a hostile file can neither run code nor grow.
``--pipeline-model-parallel-layout "Et*3|(tt|)*29m|L"`` lists the stages, chunk by chunk.
"""

from __future__ import annotations

import re

from shardwise.engine.errors import ConfigError

MAX_LAYERS = 4096
"""Longest layer list that is expanded; the deepest published models have a few hundred layers."""

_TOKEN = re.compile(r"\s*(\d{1,6}|[\[\](),+*])")


class _PatternParser:
    """Grammar: sum := term ('+' term)*; term := atom ('*' INT)*; atom := '[' ints ']' | '(' sum ')'."""

    def __init__(self, text: str, key: str) -> None:
        self.text = text
        self.key = key
        self.tokens: list[str] = []
        at = 0
        stripped = text.rstrip()
        while at < len(stripped):
            match = _TOKEN.match(stripped, at)
            if match is None or len(self.tokens) > 4 * MAX_LAYERS:
                raise self.error()
            self.tokens.append(match.group(1))
            at = match.end()
        self.at = 0
        self.depth = 0

    def error(self) -> ConfigError:
        shown = self.text if len(self.text) <= 60 else self.text[:57] + "..."
        return ConfigError(
            f"{self.key} = {shown!r}: neither a number nor a list such as ([0]*3+[1]*58)",
            field=self.key,
        )

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, expected: str = "") -> str:
        token = self.peek()
        if not token or (expected and token != expected):
            raise self.error()
        self.at += 1
        return token

    def bounded(self, values: list[int]) -> list[int]:
        if len(values) > MAX_LAYERS:
            raise ConfigError(f"{self.key}: longer than {MAX_LAYERS} layers", field=self.key)
        return values

    def sum(self) -> list[int]:
        values = self.term()
        while self.peek() == "+":
            self.take()
            values = self.bounded(values + self.term())
        return values

    def term(self) -> list[int]:
        values = self.atom()
        while self.peek() == "*":
            self.take()
            times = self.number()
            if times * len(values) > MAX_LAYERS:
                self.bounded([0] * (MAX_LAYERS + 1))
            values = values * times
        return values

    def number(self) -> int:
        token = self.take()
        if not token.isdigit():
            raise self.error()
        return int(token)

    def atom(self) -> list[int]:
        self.depth += 1
        if self.depth > 50:
            raise self.error()
        if self.peek() == "(":
            self.take()
            values = self.sum()
            self.take(")")
        else:
            self.take("[")
            values = [] if self.peek() == "]" else [self.number()]
            while self.peek() == ",":
                self.take()
                values.append(self.number())
            self.take("]")
        self.depth -= 1
        return values


def parse_layer_marks(value: object, num_layers: int, key: str) -> tuple[bool, ...]:
    """One mark per layer from argument ``key``: a list of 0 and 1, or Megatron's expression for one."""
    if isinstance(value, list):
        marks = value
    else:
        parser = _PatternParser(str(value), key)
        marks = parser.sum()
        if parser.peek():
            raise parser.error()
    if len(marks) != num_layers or any(mark not in (0, 1) for mark in marks):
        raise ConfigError(
            f"{key}: {len(marks)} entries for num_layers={num_layers}; one 0 or 1 per layer is allowed",
            field=key,
        )
    return tuple(mark == 1 for mark in marks)


def parse_moe_layers(value: object, num_layers: int) -> tuple[bool, ...]:
    """For each layer, whether it is a MoE layer, from ``moe_layer_freq`` (number, list, expression)."""
    key = "moe_layer_freq"
    if isinstance(value, int) or (isinstance(value, str) and value.strip().isdigit() and len(value) < 7):
        every = int(value)
        if every < 1 or isinstance(value, bool):
            raise ConfigError(f"{key} = {value}: a number of at least 1 or a list is allowed", field=key)
        return tuple(i % every == 0 for i in range(num_layers))
    return parse_layer_marks(value, num_layers, key)


def moe_layer_fields(layers: tuple[bool, ...]) -> dict[str, int] | None:
    """``num_dense_layers`` and ``moe_layer_freq`` of a model with these layers; None when no pair does."""
    if True not in layers:
        return {"num_dense_layers": len(layers), "moe_layer_freq": 1}
    dense = layers.index(True)
    later = [i - dense for i in range(dense + 1, len(layers)) if layers[i]]
    every = later[0] if later else max(1, len(layers) - dense)
    if all(mark == (i >= dense and (i - dense) % every == 0) for i, mark in enumerate(layers)):
        return {"num_dense_layers": dense, "moe_layer_freq": every}
    return None


def format_moe_layers(layers: tuple[bool, ...]) -> str | int:
    """``layers`` as Megatron spells them: a number where that is enough, else a list expression."""
    fields = moe_layer_fields(layers)
    if fields is not None and fields["num_dense_layers"] == 0:
        return fields["moe_layer_freq"]
    runs: list[tuple[int, int]] = []
    for mark in layers:
        if runs and runs[-1][0] == int(mark):
            runs[-1] = (int(mark), runs[-1][1] + 1)
        else:
            runs.append((int(mark), 1))
    return "(" + "+".join(f"[{mark}]*{times}" for mark, times in runs) + ")"
