"""Which cluster a configuration runs on: the caller's word, our header's, or counts from a launch line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwise.engine import catalog
from shardwise.engine.cluster import Cluster
from shardwise.engine.errors import ConfigError

ClusterWord = str | Mapping[str, Any] | Path | Cluster | None


def resolve_cluster(
    word: ClusterWord, nodes: int | None, per_node: int | None
) -> tuple[str | dict[str, Any], int, list[str]]:
    """``(what load_recipe takes, GPUs in all, notes)``.

    ``word`` may be a bare GPU name when the launch line gives ``nodes`` and ``per_node``. No file says
    which GPU it runs on, so without a word this raises ``ConfigError``.
    """
    if word is None:
        counts = f" (it starts {nodes or '?'} nodes of {per_node or '?'} GPUs)" if nodes or per_node else ""
        example = f"mi355x:{nodes or 4}x{per_node or 8}"
        raise ConfigError(
            f"cluster: the file does not say which GPU it runs on{counts}; pass cluster, e.g. {example}",
            field="cluster",
        )
    bare = isinstance(word, str) and ":" not in word and not Path(word).suffix and not word[:1].isdigit()
    if bare and nodes is not None and per_node is not None:
        word = f"{word}:{nodes}x{per_node}"
    cluster = catalog.cluster(word)
    notes: list[str] = []
    if nodes and per_node and nodes * per_node != cluster.world_size:
        notes.append(
            f"cluster: the launch line starts {nodes}x{per_node} GPUs, the cluster has "
            f"{cluster.num_nodes}x{cluster.gpus_per_node}; the cluster counts"
        )
    return catalog.cluster_spec(cluster), cluster.world_size, notes
