"""Megatron-Core's ``pipeline_model_parallel_layout``: which layers every model chunk holds, as a string.

``Ettt|(tt|)*29,m|L``: chunks between bars in model order, ``E`` embedding, ``t`` decoder layer, ``m``
multi-token-prediction layer, ``L`` loss; ``x*n`` and ``(...)*n`` repeat, commas are for the eye
(``transformer/pipeline_parallel_layer_layout.py``). A recipe keeps the canonical spelling, a table
a number for it. Blanks are read too, though Megatron-Core refuses them: the canonical spelling has none.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from shardwise.engine.errors import ConfigError

_FIELD = "pipeline_model_parallel_layout"
_LONGEST, _LONGEST_UNROLLED = 2_000, 20_000
"""Characters as given, and unrolled: far above any model."""
_REPEATS = (re.compile(r"\(([^()]+)\)\*(\d{1,5})"), re.compile(r"([^()*\d])\*(\d{1,5})"))


@dataclass(frozen=True, slots=True)
class PipelineLayout:
    """A layout, unrolled."""

    chunks: tuple[str, ...]
    """Letters of each chunk, in model order; chunk ``c`` of rank ``s`` is entry ``c * pp + s``."""

    def count(self, letter: str) -> int:
        return sum(chunk.count(letter) for chunk in self.chunks)

    def ends(self) -> npt.NDArray[np.int64]:
        """Decoder layers up to and including each chunk (chunks,)."""
        return np.cumsum([chunk.count("t") for chunk in self.chunks])

    def mtp_chunk(self) -> int | None:
        """The chunk that holds the multi-token-prediction layers; None without any."""
        return next((i for i, chunk in enumerate(self.chunks) if "m" in chunk), None)


@lru_cache(maxsize=1024)
def parse_layout(text: str) -> PipelineLayout:
    """Unroll a layout; :class:`ConfigError` for what is none."""
    flat = re.sub(r"[\s,]", "", text)
    if len(flat) > _LONGEST:
        raise ConfigError(f"{_FIELD}: longer than {_LONGEST} characters", field=_FIELD)
    for pattern in _REPEATS:
        grown = sum(len(m.group(1)) * int(m.group(2)) for m in pattern.finditer(flat))
        if grown > _LONGEST_UNROLLED:
            raise ConfigError(f"{_FIELD}: unrolls to more than {_LONGEST_UNROLLED} characters", field=_FIELD)
        flat = pattern.sub(lambda m: m.group(1) * int(m.group(2)), flat)
    odd = sorted(set(flat) - set("EtmL|"))
    if odd or not flat:
        raise ConfigError(
            f"{_FIELD} = {text[:60]!r}: {''.join(odd)[:10]!r} is no layer; known are E, t, m and L, with | "
            "between chunks, as in Et*3|(tt|)*29m|L",
            field=_FIELD,
        )
    return PipelineLayout(tuple(flat.split("|")))


def canonical_layout(text: str) -> str:
    """The one spelling of what ``text`` says, as Megatron-Core reads it; :class:`ConfigError` for none."""
    short = _shortened("|".join(parse_layout(text).chunks))
    if len(short) > _LONGEST:
        raise ConfigError(f"{_FIELD}: longer than {_LONGEST} characters when written out", field=_FIELD)
    return short


_CODES: dict[str, int] = {}
_TEXTS: list[str | None] = [None]
_LOCK = threading.Lock()


def code_of(text: str | None) -> int:
    """The number that stands for a layout in a table; 0 for none. Numbers live as long as the process."""
    if text is None:
        return 0
    with _LOCK:
        if text not in _CODES:
            parse_layout(text)
            _CODES[text] = len(_TEXTS)
            _TEXTS.append(text)
        return _CODES[text]


def text_of(code: int) -> str | None:
    """The layout of a number."""
    return _TEXTS[code]


def layout_of(code: int) -> PipelineLayout:
    """The layout of a number other than 0."""
    text = _TEXTS[code]
    assert text is not None
    return parse_layout(text)


def balanced_layout(num_layers: int, mtp_num_layers: int, pp: int, vpp: int) -> str | None:
    """A layout of ``pp * vpp`` chunks whose fullest chunk is as small as can be; None where there are fewer
    layers than chunks. The loss counts as one layer and a multi-token-prediction layer as two, for its own
    head; the embedding as none. What does not divide is spread over the first chunks behind the first."""
    chunks = pp * vpp
    end = 1 + 2 * mtp_num_layers
    if chunks < 2 or num_layers < chunks:
        return None
    per = -(-(num_layers + end) // chunks)
    last = max(per - end, 0)
    each, more = divmod(num_layers - last, chunks - 1)
    counts = [each + (1 <= i <= more) for i in range(chunks - 1)]
    if more == chunks - 1 or min(counts) < 1:
        return None
    body = "|".join("t" * count for count in counts)
    return _shortened(f"E{body}|{'t' * last}{'m' * mtp_num_layers}L")


def _shortened(flat: str) -> str:
    """The same layout with equal chunks in a row written once."""
    chunks = flat.split("|")
    parts: list[str] = []
    start = 0
    while start < len(chunks):
        stop = start
        while stop < len(chunks) and chunks[stop] == chunks[start]:
            stop += 1
        short = re.sub(r"t{3,}", lambda m: f"t*{len(m.group())}", chunks[start])
        times = stop - start
        bar = "" if stop == len(chunks) else "|"
        parts.append(
            f"({short}|)*{times}" if times > 1 and bar else (short + "|") * (times - 1) + short + bar
        )
        start = stop
    return "".join(parts)
