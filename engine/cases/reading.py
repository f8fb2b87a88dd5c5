"""``Case``: one measured configuration, as its source states it, and the reader of case files.

A case file holds one JSON object a line. Reading is lenient (unknown keys are ignored, nearly every
value may be null) but bounded: sizes, text lengths and the number of lines have limits. A line that
cannot be read becomes a case with ``fault`` set, so that it is counted and reported, never dropped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shardwise.engine.errors import ConfigError
from shardwise.engine.spec import one_line

MAX_LINE_CHARS = 1_000_000
"""Longest line accepted; the longest published row is about 5,000 characters."""
MAX_CASES = 1_000_000

Count = Annotated[int, Field(ge=0, le=10**9)]
Number = Annotated[float, Field(ge=0, le=1e15)]
Text = Annotated[str, Field(max_length=20_000)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False, coerce_numbers_to_str=True)


class Source(_Part):
    """Where the numbers were published."""

    title: Text = ""
    url: Text = ""
    where: Text = ""


class Mla(_Part):
    """Multi-latent attention ranks and head sizes (elements)."""

    q_lora_rank: Count | None = None
    kv_lora_rank: Count | None = None
    qk_nope_head_dim: Count | None = None
    qk_rope_head_dim: Count | None = None
    v_head_dim: Count | None = None


class Arch(_Part):
    """The model's sizes (elements); null where the source is silent."""

    layers: Count | None = None
    hidden: Count | None = None
    ffn_hidden: Count | None = None
    heads: Count | None = None
    kv_heads: Count | None = None
    head_dim: Count | None = None
    vocab: Count | None = None
    gated_mlp: bool | None = None
    tied_embeddings: bool | None = None
    experts: Count | None = None
    topk: Count | None = None
    moe_ffn_hidden: Count | None = None
    shared_ffn_hidden: Count | None = None
    dense_layers: Count | None = None
    mla: Mla | None = None
    mtp_layers: Count | None = None


class CaseModel(_Part):
    """What was trained."""

    name: Text = ""
    arch: Arch = Arch()


class Hardware(_Part):
    """On what."""

    gpu: Text | None = None
    gpus: Count | None = None
    gpus_per_node: Count | None = None
    interconnect: Text | None = None


class Framework(_Part):
    """With which software."""

    name: Text = ""
    version: Text | None = None


class Parallel(_Part):
    """How it was split; free text in ``dp_sharding`` and ``pp_schedule``."""

    tp: Count | None = None
    pp: Count | None = None
    vpp: Count | None = None
    cp: Count | None = None
    ep: Count | None = None
    etp: Count | None = None
    dp: Count | None = None
    sequence_parallel: bool | None = None
    dp_sharding: Text | None = None
    pp_schedule: Text | None = None


class Batch(_Part):
    """Sequences per micro batch and per step, tokens per sequence."""

    mbs: Count | None = None
    gbs: Count | None = None
    seq_len: Count | None = None


class Measured(BaseModel):
    """What was measured; null where the source does not state it. Further keys are kept."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)

    tokens_per_s_per_gpu: Number | None = None
    tflops_per_gpu: Number | None = None
    step_time_s: Number | None = None
    mfu_pct: Number | None = None
    peak_mem_gib: Number | None = None
    oom: bool | None = None


class Case(_Part):
    """One measured configuration."""

    id: Text = Field(min_length=1)
    source: Source = Source()
    model: CaseModel = CaseModel()
    hardware: Hardware = Hardware()
    framework: Framework = Framework()
    precision: Text | None = None
    parallel: Parallel = Parallel()
    batch: Batch = Batch()
    recompute: Text | None = None
    options: dict[Text, Any] = Field(default_factory=dict, max_length=200)
    measured: Measured = Measured()
    notes: Text | None = None
    assumed: tuple[Text, ...] = Field(default=(), max_length=100)
    fault: str | None = None
    """Why the line could not be read; every other field but ``id`` is then empty."""


def read_cases(path: str | Path) -> list[Case]:
    """The cases of one file in file order. Raises :class:`ConfigError` when the file cannot be read."""
    file = Path(path)
    try:
        with file.open(encoding="utf-8") as lines:
            return list(_cases(lines, file.name))
    except (OSError, UnicodeDecodeError) as err:
        raise ConfigError(
            f"cases = {str(path)!r}: cannot be read ({err}); needs a file of one JSON object a line",
            field="cases",
        ) from err


def _cases(lines: Any, name: str) -> Iterator[Case]:
    number = read = 0
    while line := lines.readline(MAX_LINE_CHARS + 1):
        number += 1
        if len(line) > MAX_LINE_CHARS:
            raise ConfigError(
                f"{name}:{number}: the line is longer than {MAX_LINE_CHARS} characters; is this a case file?",
                field="cases",
            )
        if not line.strip():
            continue
        read += 1
        if read > MAX_CASES:
            raise ConfigError(f"{name}: more than {MAX_CASES} cases", field="cases")
        yield _case(line, f"{name}:{number}")


def _case(line: str, where: str) -> Case:
    try:
        data = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as err:
        return Case(id=where, fault=f"{where}: not a JSON object ({err})")
    if not isinstance(data, dict):
        return Case(id=where, fault=f"{where}: not a JSON object but {type(data).__name__}")
    known = {key: value for key, value in data.items() if key != "fault" and value is not None}
    try:
        return Case.model_validate(known)
    except ValidationError as err:
        name = data.get("id")
        return Case(
            id=name if isinstance(name, str) and 0 < len(name) <= 1000 else where, fault=one_line(err, where)
        )
