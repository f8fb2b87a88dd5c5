"""Proposals read as untrusted input: whatever an LLM sends becomes candidates or one-line problems.

Nothing is repaired in silence: a wrong type is a problem that goes back to the LLM once, not a guess
(``"false"`` is not false). What is legal and what fits is decided later, like for any candidate.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Annotated, Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from shardwise.agent.errors import ProposalInvalid
from shardwise.agent.request import TuneRequest
from shardwise.agent.state import Candidate
from shardwise.agent.trial import changed, fields_of, recipe_of, words
from shardwise.engine.errors import ConfigError, unknown_name
from shardwise.engine.recipe import RECOMPUTE_DETAILS, Recipe

MAX_CANDIDATES = 8
"""Candidates taken from one answer; more are dropped with a problem that says so."""
MAX_RATIONALE = 600
"""Characters of a rationale that are kept."""
_FROZEN = ("model", "cluster", "gbs", "seq_len")
_LARGEST = 2**31


def read_proposals(
    raw: Any, incumbent: Mapping[str, Any], request: TuneRequest, *, precisions: frozenset[str]
) -> tuple[list[Candidate], list[str]]:
    """Candidates and problems of one answer.

    ``raw`` is what the LLM sent: ``{"candidates": [...]}``, a list, or one candidate. Changes are
    relative to ``incumbent``; ``precisions`` are those that may be proposed. Never raises for bad content.
    """
    items = raw.get("candidates", raw if "changes" in raw else None) if isinstance(raw, Mapping) else raw
    if isinstance(items, str):
        items = find_json(items)
    if isinstance(items, Mapping):
        items = [items]
    if not isinstance(items, list):
        return [], ['candidates must be a list of {"changes": {field: value}, "rationale": text}']
    found: list[Candidate] = []
    problems: list[str] = []
    if len(items) > MAX_CANDIDATES:
        problems.append(f"{len(items)} candidates sent, only the first {MAX_CANDIDATES} are read")
    for number, item in enumerate(items[:MAX_CANDIDATES], start=1):
        try:
            found.append(_candidate(item, incumbent, request, precisions))
        except ProposalInvalid as err:
            problems.append(f"candidate {number}: {err}")
    return found, problems


def find_json(text: str) -> Any:
    """The first JSON object or array in ``text`` (fenced or bare); None when there is none."""
    decoder = json.JSONDecoder()
    for start in [found.start() for found in re.finditer(r"[{\[]", text)][:50]:
        try:
            value, _end = decoder.raw_decode(text, start)
        except (json.JSONDecodeError, RecursionError):
            continue
        if value:
            return value
    return None


def apply_changes(
    incumbent: Mapping[str, Any], changes: Mapping[str, Any], request: TuneRequest
) -> dict[str, Any]:
    """The incumbent's fields with ``changes`` and with what follows from them.

    A field that only has meaning together with a changed one is dropped or derived anew:
    ``sequence_parallel`` follows ``tp``, recomputation details follow ``recompute``. Raises
    :class:`ConfigError` when the result is no recipe.
    """
    fields = {**incumbent, **changes}
    if "tp" in changes and "sequence_parallel" not in changes and "sequence_parallel" not in request.fixed:
        fields["sequence_parallel"] = fields["tp"] > 1
    if "recompute" in changes:
        for name in RECOMPUTE_DETAILS:
            if name not in changes and name not in request.fixed:
                fields.pop(name, None)
    return fields_of(recipe_of(request, fields))


def _candidate(
    item: Any, incumbent: Mapping[str, Any], request: TuneRequest, precisions: frozenset[str]
) -> Candidate:
    if not isinstance(item, Mapping) or not isinstance(item.get("changes"), Mapping):
        raise ProposalInvalid('must be an object with "changes": {field: value}')
    changes = {str(name): value for name, value in item["changes"].items()}
    for name, value in changes.items():
        _check(name, value, request, precisions)
    try:
        fields = apply_changes(incumbent, changes, request)
    except ConfigError as err:
        raise ProposalInvalid(str(err)) from err
    really = changed(incumbent, fields)
    if not really:
        raise ProposalInvalid(f"changes nothing in the incumbent ({words(changes)})")
    rationale = item.get("rationale", "")
    return Candidate(
        fields=fields,
        changes=really,
        origin="llm",
        axis="",
        rationale=(rationale if isinstance(rationale, str) else "")[:MAX_RATIONALE],
        expected_gain_pct=_expected(item.get("expected_gain_pct")),
        reference=False,
    )


def _check(name: str, value: Any, request: TuneRequest, precisions: frozenset[str]) -> None:
    if name not in Recipe.model_fields:
        raise ProposalInvalid(str(unknown_name("field", name, Recipe.model_fields)))
    if name in _FROZEN:
        raise ProposalInvalid(f"{name} is not searched: it is part of the request")
    if name in request.fixed and value != request.fixed[name]:
        raise ProposalInvalid(f"{name} is fixed to {request.fixed[name]!r} by the request")
    if isinstance(value, int) and abs(value) > _LARGEST:
        raise ProposalInvalid(f"{name} is too large")
    try:
        _type_of(name).validate_json(json.dumps(value, allow_nan=False), strict=True)
    except (ValueError, TypeError, RecursionError) as err:
        first = err.errors(include_url=False)[0]["msg"] if isinstance(err, ValidationError) else str(err)
        raise ProposalInvalid(f"{name}={_short(value)}: {first}") from err
    if name == "precision" and value not in precisions:
        raise ProposalInvalid(
            f"precision={value!r} was not allowed; allowed: {', '.join(sorted(precisions))}"
        )


@cache
def _type_of(name: str) -> TypeAdapter[Any]:
    """The strict type of a recipe field, with the field's own bounds."""
    info = Recipe.model_fields[name]
    annotation: Any = info.annotation
    for extra in info.metadata:
        annotation = Annotated[annotation, extra]
    return TypeAdapter(annotation, config=ConfigDict(allow_inf_nan=False))


def _expected(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(min(max(value, -100.0), 1000.0))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def repair_message(problems: Iterable[str]) -> str:
    """What the LLM is told once about its mistakes."""
    listed = "\n".join(f"- {problem}" for problem in problems)
    return (
        "Some of this cannot be used:\n"
        f"{listed}\n"
        "Send the corrected candidates once more. Numbers are JSON numbers, switches are true or false, "
        "field names are those of the recipe."
    )
