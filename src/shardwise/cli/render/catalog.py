"""The catalog as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from shardwise.cli.render.units import NONE, count, gib, word

Documents = Sequence[Mapping[str, Any]]


def models(documents: Documents) -> Group:
    """Size at a glance, and the source."""
    table = _table("model", "layers", "hidden", "heads", "kv", "experts", "source", text=(0, 6))
    for model in documents:
        experts = f"{model['num_experts']} top {model['moe_router_topk']}" if model["num_experts"] else NONE
        kv = "MLA" if model["multi_latent_attention"] else str(model["num_query_groups"])
        sizes = (count(model[name]) for name in ("num_layers", "hidden_size", "num_attention_heads"))
        table.add_row(model["name"], *sizes, kv, experts, _first(model["source"]))
    return Group(table, _more("models mixtral-8x22b"))


def gpus(documents: Documents) -> Group:
    """Memory, bandwidths and dense peaks; bandwidths are one GPU's, one direction."""
    heads = ("GPU", "\nGiB", "HBM\nTB/s", "bf16\nTF/s", "fp8\nTF/s", "fabric\nGB/s", "NIC\nGB/s", "source")
    table = _table(*heads, text=(0, 7))
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
            _first(next(iter(gpu["sources"].values()), "")),
        )
    return Group(table, _more("gpus mi355x"))


def clusters(documents: Documents) -> Group:
    """Node designs: GPU, GPUs per node, source."""
    table = _table("cluster", "GPU", "GPUs per node", "source", text=(0, 1, 3))
    for cluster in documents:
        table.add_row(
            cluster["name"], word(cluster["gpu"]), word(cluster["gpus_per_node"]), cluster["source"]
        )
    example = Text("  NAME:NODES is a cluster, e.g. --cluster dgx-h100:4", style="dim")
    return Group(table, example)


def one(document: Mapping[str, Any]) -> Table:
    """One entry with every field that is set."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, max_width=40)
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


def _first(source: str) -> str:
    """A source in short: its first clause."""
    return source.split(";")[0].removeprefix("Hugging Face ").removesuffix(", config.json")


def _more(example: str) -> Text:
    return Text(f"  every field and its source: shardwise catalog {example}", style="dim")


def _table(*heads: str, text: tuple[int, ...]) -> Table:
    """Only the last column, the source, gives way when the page is narrow."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), expand=True)
    for index, head in enumerate(heads):
        last = index == len(heads) - 1
        justify: Literal["left", "right"] = "left" if index in text else "right"
        table.add_column(head, justify=justify, no_wrap=True, overflow="ellipsis", ratio=1 if last else None)
    return table
