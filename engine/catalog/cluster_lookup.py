"""What a user may give for a cluster: a spelling, a node design, a file, a mapping -> ``Cluster``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field, NonNegativeInt, PositiveInt

from shardwise.engine.catalog import names
from shardwise.engine.catalog.documents import read_mapping
from shardwise.engine.catalog.keys import refuse_unknown_keys
from shardwise.engine.catalog.lookup import SUFFIXES, as_file, gpu, gpu_spec, merge, not_a_file
from shardwise.engine.cluster import GPU, Cluster
from shardwise.engine.errors import ConfigError, unknown_name
from shardwise.engine.spec import Spec

ClusterLike = str | Path | Mapping[str, Any] | Cluster

MAX_NODES = 1_000_000
"""Most nodes accepted."""
MAX_GPUS = 10_000_000
"""Most GPUs accepted, over all nodes."""
HOW = "write GPU:NODESxGPUS_PER_NODE, e.g. mi355x:4x8"

_NICS = ("nics_per_node", "nic_gbit_per_s")
_KEYS = (
    *("base", "gpu", "num_nodes", "gpus_per_node", "fabric", "nic", "oversubscription", "pod_size"),
    *_NICS,
)
_MOST = {"nics_per_node": 64, "nic_gbit_per_s": 100_000}
_NUMBER = r"[+-]?\d{1,18}"
_SHAPE = re.compile(rf"^({_NUMBER})\s*[xX×*]\s*({_NUMBER})$")
_SHAPE_FIRST = re.compile(rf"^({_NUMBER})\s*[xX×*]\s*({_NUMBER})\s+(.+)$")
_TOTAL_FIRST = re.compile(rf"^({_NUMBER})\s*(?:[xX×*]\s*|\s)(?=[A-Za-z])(.+)$")


class NodeDesign(Spec):
    """A well-known node: which GPU, how many, and the networks around them; ``NAME:NODES`` is a cluster."""

    name: str = Field(min_length=1)
    description: str
    source: str
    gpu: str
    """Catalog name of the GPU."""
    gpus_per_node: PositiveInt
    max_nodes: PositiveInt | None = None
    """Nodes of the machine or rack that the name stands for; None when there is no such bound."""
    overrides: dict[str, Any] = Field(default_factory=dict)
    """What differs from the GPU's own: ``fabric``, ``nic``, ``oversubscription``, ``pod_size``."""
    nics_per_node: NonNegativeInt = 0
    """Scale-out NICs of one node; for people."""

    def cluster(self, num_nodes: int) -> Cluster:
        """``num_nodes`` of this node."""
        if self.max_nodes is not None and num_nodes > self.max_nodes:
            raise ConfigError(
                f"cluster: num_nodes = {num_nodes} exceeds the {self.max_nodes} nodes of {self.name}",
                field="num_nodes",
            )
        return _build(gpu(self.gpu), num_nodes, self.gpus_per_node, self.overrides, f"cluster {self.name}")


@cache
def _designs() -> dict[str, NodeDesign]:
    data = read_mapping(names.FOLDER / "clusters.yaml", what="catalog")
    return {
        name: NodeDesign.build({"name": name, **data[name]}, where=f"cluster {name}") for name in sorted(data)
    }


def clusters() -> dict[str, NodeDesign]:
    """Every named node design, sorted."""
    return dict(_designs())


def cluster(spec: ClusterLike) -> Cluster:
    """The cluster that ``spec`` means.

    ``GPU:NODESxGPUS_PER_NODE`` (``mi355x:4x8``); ``NAME:NODES`` of a named node design
    (``dgx-h100:4``); a number of GPUs that fills whole nodes (``32x mi355x``, ``32 MI355X``);
    ``4x8 H100``; the path of a YAML file; or a mapping with ``gpu`` (name, file or mapping),
    ``num_nodes``, ``gpus_per_node`` and, when they differ from the GPU's own, ``fabric`` and ``nic``
    (field by field), ``oversubscription``, ``pod_size``. A mapping may start from a short spelling
    under ``base``, and may give the scale-out network as ``nics_per_node`` of ``nic_gbit_per_s`` each,
    shared by the node's GPUs.

    Raises :class:`ConfigError`.
    """
    if isinstance(spec, Cluster):
        return spec
    if isinstance(spec, Mapping):
        return _mapping(spec, "cluster")
    if not isinstance(spec, (str, Path)) or not str(spec).strip():
        raise ConfigError(f"cluster = {spec!r}: {HOW}", field="cluster")
    if isinstance(spec, Path) or spec.lower().endswith(SUFFIXES):
        return _mapping(read_mapping(spec, what="cluster"), str(spec))
    return _short(spec.strip())


def cluster_spec(cluster: Cluster) -> str | dict[str, Any]:
    """The short spelling when it means exactly ``cluster``; else a mapping that reads back as it."""
    own = cluster.gpu
    known = gpu_spec(own)
    changed: dict[str, Any] = {}
    for name, part, usual in (("fabric", cluster.fabric, own.fabric), ("nic", cluster.nic, own.nic)):
        if part != usual:
            # Every field, so that the mapping reads back the same whatever the GPU's own is.
            changed[name] = part.model_dump(mode="json")
    if cluster.oversubscription != 1.0:
        changed["oversubscription"] = cluster.oversubscription
    if cluster.pod_size is not None:
        changed["pod_size"] = cluster.pod_size
    if isinstance(known, str) and not changed:
        return f"{known}:{cluster.num_nodes}x{cluster.gpus_per_node}"
    shape = {"num_nodes": cluster.num_nodes, "gpus_per_node": cluster.gpus_per_node}
    return {"gpu": known, **shape, **changed}


def node_size(gpu: GPU) -> int:
    """GPUs of the usual node: what one fabric connects, or 4 where it spans nodes (an NVL72 tray)."""
    return 4 if gpu.fabric.spans_nodes else min(gpu.fabric.domain_size, 8)


def _short(text: str) -> Cluster:
    if len(text) > 200 or not text.isprintable():
        raise ConfigError(f"cluster = {text[:40]!r}...: {HOW}", field="cluster")
    name, colon, shape = text.rpartition(":")
    if colon:
        return _with_shape(name.strip(), shape.strip(), text)
    if match := _SHAPE_FIRST.match(text):
        nodes, per_node, name = match.groups()
        return _with_shape(_singular(name), f"{nodes}x{per_node}", text)
    if match := _TOTAL_FIRST.match(text):
        return _whole_nodes(int(match[1]), _singular(match[2]), text)
    if text.lower() in _designs():
        raise ConfigError(
            f"cluster = {text!r}: number of nodes missing; write {text.lower()}:NODES", field="cluster"
        )
    if found := names.find("gpus", text):
        size = node_size(gpu(found))
        raise ConfigError(
            f"cluster = {text!r}: size missing; {HOW} (nearest: {found}:1x{size})", field="cluster"
        )
    if as_file(text) is not None:
        return _mapping(read_mapping(text, what="cluster"), text)
    raise ConfigError(f"cluster = {text!r}: not understood; {HOW}", field="cluster")


def _with_shape(name: str, shape: str, text: str) -> Cluster:
    design = _designs().get(name.lower())
    match = _SHAPE.match(shape)
    if design is not None:
        nodes, per_node = shape, design.gpus_per_node
        if match:
            nodes, per_node = match[1], int(match[2])
        if not re.fullmatch(_NUMBER, nodes) or per_node != design.gpus_per_node:
            raise ConfigError(
                f"cluster = {text!r}: {design.name} has {design.gpus_per_node} GPUs per node; "
                f"write {design.name}:NODES",
                field="cluster",
            )
        return design.cluster(_count(int(nodes), "num_nodes", text, MAX_NODES))
    one = _named_gpu(name)
    if match is None:
        size = node_size(one)
        near = f"nearest: {one.name}:1x{size}"
        if re.fullmatch(r"\d{1,6}", shape) and int(shape) > 0:
            near = f"{shape} nodes: {one.name}:{shape}x{size}"
            if int(shape) < size:
                near += f", {shape} GPUs: {one.name}:1x{shape}"
        raise ConfigError(
            f"cluster = {text!r}: size {shape!r} not understood; {HOW} ({near})", field="cluster"
        )
    nodes_count = _count(int(match[1]), "num_nodes", text, MAX_NODES)
    limit = one.fabric.domain_size
    return _build(
        one, nodes_count, _count(int(match[2]), "gpus_per_node", text, limit), {}, f"cluster {text!r}"
    )


def _whole_nodes(total: int, name: str, text: str) -> Cluster:
    one = _named_gpu(name)
    size = node_size(one)
    _count(total, "number of GPUs", text, MAX_NODES * size)
    if total > size and total % size:
        near = max(round(total / size), 1)
        raise ConfigError(
            f"cluster = {text!r}: {total} GPUs do not fill nodes of {size}; "
            f"nearest: {one.name}:{near}x{size} ({near * size} GPUs)",
            field="cluster",
        )
    return _build(one, max(total // size, 1), min(total, size), {}, f"cluster {text!r}")


def _named_gpu(name: str) -> GPU:
    if not name:
        raise ConfigError(f"cluster: the GPU's name is missing; {HOW}", field="cluster")
    if names.find("gpus", name) is None and as_file(name) is None:
        raise unknown_name("GPU", name[:80], (*names.names("gpus"), *_designs()))
    return gpu(name)


def _singular(name: str) -> str:
    """``H100s`` and ``H100 GPUs`` are ``H100``."""
    plain = re.sub(r"\s+(?:gpu|accelerator)s?$", "", name.strip(), flags=re.IGNORECASE)
    return plain[:-1] if plain[-1:] in "sS" and names.find("gpus", plain) is None else plain


def _count(value: int, field: str, text: str, limit: int) -> int:
    if not 1 <= value <= limit:
        nearest = 1 if value < 1 else limit
        raise ConfigError(
            f"cluster = {text!r}: {field} = {value} is out of range (1 to {limit}, nearest: {nearest})",
            field=field,
        )
    return value


def _mapping(data: Mapping[str, Any], where: str) -> Cluster:
    refuse_unknown_keys(data, _KEYS, where)
    fields = {key: value for key, value in data.items() if value is not None}
    node_gbit = _node_gbit_per_s(fields, where)
    base = fields.pop("base", None)
    if base is not None:
        start = cluster(not_a_file(base, where))
        usual = start.model_dump()
        usual["gpu"] = start.gpu
        if "gpu" in fields:
            del usual["fabric"], usual["nic"]
        fields = merge(usual, fields, ("fabric", "nic"))
    for key in ("gpu", "num_nodes"):
        if key not in fields:
            raise ConfigError(
                f"{where}: {key} is missing (a mapping needs gpu, num_nodes, gpus_per_node)", field=key
            )
    one = gpu(fields.pop("gpu"))
    nodes, per_node = fields.pop("num_nodes"), fields.pop("gpus_per_node", node_size(one))
    if node_gbit is not None:
        if not isinstance(per_node, int) or per_node < 1:
            raise ConfigError(
                f"{where}: gpus_per_node = {per_node!r} must be at least 1", field="gpus_per_node"
            )
        fields["nic"] = {**fields.get("nic", {}), "bandwidth_bytes_per_s": node_gbit * 1e9 / 8 / per_node}
    return _build(one, nodes, per_node, fields, where)


def _node_gbit_per_s(fields: dict[str, Any], where: str) -> float | None:
    """A node's scale-out rate where NICs are counted; takes ``nics_per_node`` and ``nic_gbit_per_s`` out."""
    given = {key: fields.pop(key, None) for key in _NICS}
    if all(value is None for value in given.values()):
        return None
    for key, value in given.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 < value <= _MOST[key]:
            raise ConfigError(
                f"{where}: {key} = {value!r} must be above 0 and at most {_MOST[key]} "
                f"({' and '.join(_NICS)} go together)",
                field=key,
            )
    own = fields.get("nic", {})
    if not isinstance(own, Mapping) or "bandwidth_bytes_per_s" in own:
        raise ConfigError(
            f"{where}: nic.bandwidth_bytes_per_s and nics_per_node both give the NICs; leave one out",
            field="nics_per_node",
        )
    return float(given["nics_per_node"]) * float(given["nic_gbit_per_s"])


def _build(one: GPU, nodes: Any, per_node: Any, changes: Mapping[str, Any], where: str) -> Cluster:
    own = {"fabric": one.fabric.model_dump(), "nic": one.nic.model_dump()}
    fields = {"gpu": one, "num_nodes": nodes, "gpus_per_node": per_node}
    built = Cluster.build({**fields, **merge(own, changes, ("fabric", "nic"))}, where=where)
    if built.num_nodes > MAX_NODES or built.world_size > MAX_GPUS:
        raise ConfigError(f"{where}: at most {MAX_NODES} nodes and {MAX_GPUS} GPUs in all", field="num_nodes")
    return built
