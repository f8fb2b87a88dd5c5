"""The catalog as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from shardwise.cli.render.units import NONE, count, gib, word

Documents = Sequence[Mapping[str, Any]]


def models(documents: Documents) -> Table:
    """Size at a glance, and the source."""
    table = _table("model", "layers", "hidden", "heads", "kv", "experts", "source", text=(0, 6))
    for model in documents:
        experts = f"{model['num_experts']} top {model['moe_router_topk']}" if model["num_experts"] else NONE
        kv = "MLA" if model["multi_latent_attention"] else str(model["num_query_groups"])
        sizes = (count(model[name]) for name in ("num_layers", "hidden_size", "num_attention_heads"))
        table.add_row(model["name"], *sizes, kv, experts, model["source"])
    return table


def gpus(documents: Documents) -> Table:
    """Memory, bandwidths, dense peaks, and the source of the peak."""
    table = _table("GPU", "GiB", "HBM TB/s", "bf16 TF/s", "fp8 TF/s", "fabric GB/s", "NIC GB/s", "source", text=(0, 7))
    for gpu in documents:
        peaks = gpu["peak_flops"]
        table.add_row(
            gpu["name"],
            gib(gpu["memory_bytes"], unit=False),
            f"{gpu['hbm_bandwidth_bytes_per_s'] / 1e12:.2f}",
            _tera(peaks.get("bf16") or peaks.get("fp16")),
            _tera(peaks.get("fp8")),
            f"{gpu['fabric']['kind']} {gpu['fabric']['bandwidth_bytes_per_s'] / 1e9:,.0f}",
            f"{gpu['nic']['bandwidth_bytes_per_s'] / 1e9:,.1f}",
            next(iter(gpu["sources"].values()), ""),
        )
    return table


def clusters(documents: Documents) -> Table:
    """Node designs: GPU, GPUs per node, source."""
    table = _table("cluster", "GPU", "GPUs per node", "source", text=(0, 1, 3))
    for cluster in documents:
        gpu = cluster.get("gpu")
        name = gpu["name"] if isinstance(gpu, Mapping) else str(gpu)
        table.add_row(
            cluster["name"], name, word(cluster.get("gpus_per_node")), str(cluster.get("source", ""))
        )
    return table


def one(document: Mapping[str, Any]) -> Table:
    """One entry with every field that is set."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _flat(document):
        table.add_row(name, value)
    return table


def _flat(document: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for name, value in document.items():
        if isinstance(value, Mapping):
            rows += _flat(value, f"{prefix}{name}.")
        elif value not in (None, ""):
            rows.append((f"{prefix}{name}", f"{value:g}" if isinstance(value, float) else word(value)))
    return rows


def _tera(flops: float | None) -> str:
    return NONE if flops is None else f"{flops / 1e12:,.0f}"


def _table(*heads: str, text: tuple[int, ...]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for index, head in enumerate(heads):
        last = index == len(heads) - 1
        table.add_column(
            head,
            justify="left" if index in text else "right",
            no_wrap=not last,
            overflow="fold" if last else "ellipsis",
        )
    return table
