"""A small deterministic grammar for requests in words: ``tune Mixtral 8x22B on 32 MI355X with tp 1``.

Each rule recognises one phrase, takes it out of the text and sets fields. What is left between the
rules' matches is looked up as the model's name; words that mean nothing to the grammar are echoed
in :attr:`PartialRequest.unparsed`, so that nothing is ignored in silence.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from shardwise.engine import catalog
from shardwise.engine.errors import ConfigError
from shardwise.engine.recipe import PRECISIONS


@dataclass(frozen=True, slots=True)
class PartialRequest:
    """What the words said."""

    fields: dict[str, Any] = field(default_factory=dict)
    """Fields of a ``TuneRequest``; names not yet resolved stay names."""
    unparsed: tuple[str, ...] = ()
    """Words that were not understood, in the order they came."""

    def merged(self, **explicit: Any) -> dict[str, Any]:
        """The fields, overridden by every ``explicit`` one that is not None; ``fixed`` is merged."""
        given = {key: value for key, value in explicit.items() if value is not None}
        fixed = {**self.fields.get("fixed", {}), **given.pop("fixed", {})}
        return {**self.fields, **given, **({"fixed": fixed} if fixed else {})}


_SIZES = {
    "tp": r"tp|tensor(?:[ -]model)?[ -]parallel(?:ism)?(?:[ -]size)?",
    "pp": r"pp|pipeline(?:[ -]model)?[ -]parallel(?:ism)?(?:[ -]size)?",
    "vpp": r"vpp|virtual[ -]pipeline(?:[ -]parallel)?(?:[ -](?:size|stages))?",
    "cp": r"cp|context[ -]parallel(?:ism)?(?:[ -]size)?",
    "etp": r"etp|expert[ -]tensor[ -]parallel(?:ism)?(?:[ -]size)?",
    "ep": r"ep|expert(?:[ -]model)?[ -]parallel(?:ism)?(?:[ -]size)?",
    "mbs": r"mbs|micro[ -]?batch(?:[ -]?size)?",
    "gbs": r"gbs|(?:global[ -]?)?batch(?:[ -]?size)?",
    "seq_len": r"seq(?:uence)?[ _-]?len(?:gth)?|seq(?:uence)?|context(?:[ -]length)?",
}
_ORDER = ("etp", "vpp", "tp", "pp", "cp", "ep", "mbs", "gbs", "seq_len")
_NUMBER = r"\s*(?:=|:|of|to|is)?\s*(\d+)(\s*k)?\b"
_FILLER = re.compile(
    "a|an|and|at|best|both|can|config(uration)?|could|do|fastest|find|fix(ed)?|for|from|get|give|gpus?|how|i|in|is|it"
    "|keep|lets?|make|me|model|my|need|of|on|only|over|optimi[sz]e|optimum|please|pretrain(ing)?|recipe|runs?|search"
    "|set|should|size|the|to|train(ing)?|tuned?|tuning|use|using|want|we|what|which|with|would|throughput",
    re.IGNORECASE,
)
_NEGATION = re.compile(
    "not|no|never|without|except|avoid|exclud(e|ing)|(do|must|should|ca)n['’]?t", re.IGNORECASE
)
_MARKS = ",.;:!?"
MAX_LENGTH = 2000
"""Longest request in words, characters."""
MAX_NAME_WORDS = 8
"""Most words that a model's name is looked for in."""
_PRECISION_WORD = "|".join(sorted({*PRECISIONS, "fp8", "fp4", "bfloat16"}, key=len, reverse=True))


def parse_request(text: str) -> PartialRequest:
    """Read a request in words.

    Raises :class:`ConfigError` when it names an unknown model or GPU, or a GPU count that does not
    fill whole nodes, two models or two clusters, or a "not" that no rule understood (what follows it was
    read as its opposite); anything else not understood is returned in ``unparsed``.
    """
    if len(text) > MAX_LENGTH:
        raise ConfigError(
            f"request: {len(text)} characters are too many (at most {MAX_LENGTH})", field="request"
        )
    state = _Reading(" " + re.sub(r"\s+", " ", text.strip()) + " ")
    for rule in (_cluster, _budget, _recompute, _precision, _sharding, _dispatcher, _sizes):
        rule(state)
    _model(state)
    unparsed = [word for word in state.words() if not _is_filler(word)]
    for word in unparsed:
        if _NEGATION.fullmatch(word.strip(".!?:()")):
            raise ConfigError(
                f"request: {word!r} is not understood; say what to keep, as in 'tp 1' or 'no recompute'",
                field="request",
            )
    return PartialRequest(
        {**state.fields, **({"fixed": state.fixed} if state.fixed else {})}, tuple(unparsed)
    )


class _Reading:
    """The text not yet understood, and what was understood so far."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.fields: dict[str, Any] = {}
        self.fixed: dict[str, Any] = {}

    def take(self, pattern: str, use: Callable[[re.Match[str]], None]) -> bool:
        """Cut the first match out of the text (a bar keeps its neighbours apart) and use it."""
        found = re.search(pattern, self.text, re.IGNORECASE)
        if found is None:
            return False
        use(found)
        self.text = self.text[: found.start()] + " | " + self.text[found.end() :]
        return True

    def words(self) -> list[str]:
        return [word for word in re.split(r"[\s|,;]+", self.text) if re.search(r"\w", word)]


def _cluster(state: _Reading) -> None:
    def use(spelling: str) -> None:
        found = catalog.cluster_spec(catalog.cluster(spelling))
        if state.fields.setdefault("cluster", found) != found:
            raise ConfigError("request names two clusters: name one", field="cluster")

    gpu = r"((?:nvidia |amd )?[a-z]+[a-z0-9]*\d[a-z0-9]*(?:[ -](?:\d+ ?gb|sxm\d?|pcie|nvl))*)"
    times = r"\s*(?:x\s*|\*\s*)?"
    number = r"([+-]?\d+(?:\.\d+)?)"
    on = r"(?:on|using|over|with|across)"
    unit = r"(?:\s*(?:gpu|accelerator)s?)?\b"
    while (
        state.take(r"(?<=\s)([a-z][\w.-]*:\d+(?:x\d+)?)(?=[\s,.;])", lambda m: use(m[1]))
        or state.take(
            rf"\b{on} (\d+)\s*(?:x|\*)\s*(\d+){times}{gpu}{unit}", lambda m: use(f"{m[3]}:{m[1]}x{m[2]}")
        )
        or state.take(
            rf"\b{on} (\d+) nodes?(?: of| with| x|,)?\s*(\d+){times}{gpu}{unit}",
            lambda m: use(f"{m[3]}:{m[1]}x{m[2]}"),
        )
        or state.take(rf"\b(?:{on}|and|or) {number}{times}{gpu}{unit}", lambda m: use(f"{m[1]} {m[2]}"))
        or state.take(rf"(?<=\s){number}(?:\s*x)?\s+{gpu}\s*gpus?\b", lambda m: use(f"{m[1]} {m[2]}"))
    ):
        continue


def _budget(state: _Reading) -> None:
    def calls(found: re.Match[str]) -> None:
        state.fields["budget_calls"] = int(found[1])

    def time(found: re.Match[str]) -> None:
        unit = {"s": 1, "m": 60, "h": 3600}[found[2][0].lower()]
        state.fields["budget_time_s"] = float(found[1]) * unit

    state.take(
        r"\b(?:in|within|with|at most|max(?:imum)?)? ?(\d+) (?:oracle )?(?:calls|trials|tries)\b", calls
    )
    state.take(
        r"\b(?:in|within|at most|for)(?: under)? (\d+(?:\.\d+)?) ?(s|sec|seconds|min|minutes?|h|hours?)\b",
        time,
    )


def _recompute(state: _Reading) -> None:
    def value(word: str) -> Callable[[re.Match[str]], None]:
        return lambda _found: state.fixed.__setitem__("recompute", word)

    noun = r"(?:activation )?(?:re-?comput(?:e|ation|ing)|checkpointing)"
    (
        state.take(rf"\b(?:no|without|recompute[ =:]+none)\b(?:(?<=none)| (?:any )?{noun})\b", value("none"))
        or state.take(rf"\b(?:selective {noun}|recompute[ =:]+selective)\b", value("selective"))
        or state.take(rf"\b(?:full {noun}|recompute[ =:]+full)\b", value("full"))
    )


def _precision(state: _Reading) -> None:
    def allow(found: re.Match[str]) -> None:
        known = state.fields.get("allow_precision", ())
        state.fields["allow_precision"] = (*known, found[1].lower())

    def fix(found: re.Match[str]) -> None:
        state.fixed["precision"] = found[1].lower()

    word = rf"({_PRECISION_WORD})"
    for pattern in (
        rf"\b(?:allow(?:ing)?|permit(?:ting)?|or|maybe|possibly)[ =:]+{word}\b",
        rf"\b{word} (?:is )?(?:allowed|ok|okay|permitted)\b",
    ):
        while state.take(pattern, allow):
            continue
    state.take(rf"\b(?:precision[ =:]+|in )?{word}\b(?: precision)?", fix)


def _sharding(state: _Reading) -> None:
    def fix(found: re.Match[str]) -> None:
        state.fixed["dp_sharding"] = found[1].lower().replace("-", "")

    def off(_found: re.Match[str]) -> None:
        state.fixed["dp_sharding"] = "none"

    state.take(r"\b(?:dp_sharding[ =:]+)?(fsdp|hsdp|zero-?[123]|ddp)\b", fix) or state.take(
        r"\bdp_sharding[ =:]+none\b", off
    )


def _dispatcher(state: _Reading) -> None:
    def fix(found: re.Match[str]) -> None:
        state.fixed["moe_token_dispatcher"] = found[1].lower()

    state.take(r"\b(?:moe_token_dispatcher[ =:]+)?(deepep|hybridep|alltoall)\b", fix)


def _sizes(state: _Reading) -> None:
    for name in _ORDER:

        def use(found: re.Match[str], name: str = name) -> None:
            number = int(found[1]) * (1024 if found[2] else 1)
            (state.fields if name in ("gbs", "seq_len") else state.fixed)[name] = number

        state.take(rf"(?<![\w-])(?:a |the )?(?:{_SIZES[name]}){_NUMBER}", use)
    if "seq_len" not in state.fields:

        def tokens(found: re.Match[str]) -> None:
            state.fields["seq_len"] = int(found[1]) * (1024 if found[2] else 1)

        state.take(r"(?<=\s)(\d+)( ?k)? (?:token )?(?:context|sequences?|sequence length)\b", tokens)


def _model(state: _Reading) -> None:
    """Look the remaining runs of words up in the catalog, longest first."""
    found: list[str] = []
    for part in [piece.strip(" ,.;:!?") for piece in state.text.split("|")]:
        found += _names(part.split())
    known = {catalog.model(phrase.strip(_MARKS)).name: phrase for phrase in found}
    if len(known) > 1:
        raise ConfigError(f"request names {len(known)} models: {', '.join(known)}; name one", field="model")
    for phrase in found:
        state.fields["model"] = phrase.strip(_MARKS)
        state.text = re.sub(r"\s+".join(map(re.escape, phrase.split())), " | ", state.text, count=1)
    if found:
        return
    named = [w for w in state.words() if not _is_filler(w)]
    if named and any(any(ch.isdigit() for ch in word) for word in named):
        # Something that looks like a model name (it has a size in it) but is none: say what is near.
        catalog.model(" ".join(named))


def _names(words: list[str]) -> list[str]:
    """The models named in a run of words, from left to right; of two that overlap the longer one."""
    for size in range(min(len(words), MAX_NAME_WORDS), 0, -1):
        for start in range(len(words) - size + 1):
            phrase = " ".join(words[start : start + size])
            if not _is_filler(phrase) and _is_model(phrase.strip(_MARKS)):
                return [*_names(words[:start]), phrase, *_names(words[start + size :])]
    return []


def _is_filler(word: str) -> bool:
    return _FILLER.fullmatch(word.strip(".!?")) is not None


def _is_model(phrase: str) -> bool:
    try:
        catalog.model(phrase)
    except ConfigError:
        return False
    return True
