"""The catalog: models, GPUs and node designs as YAML data with their source, and their loader.

Nothing is parsed on import; a lookup parses the one file it needs and remembers the result.
"""

from shardwise.engine.catalog.cluster_lookup import NodeDesign, cluster, cluster_spec, clusters, node_size
from shardwise.engine.catalog.hf_config import from_hf_config
from shardwise.engine.catalog.lookup import gpu, gpu_spec, gpus, model, model_spec, models
from shardwise.engine.catalog.names import spellings

__all__ = [
    "NodeDesign",
    "cluster",
    "cluster_spec",
    "clusters",
    "from_hf_config",
    "gpu",
    "gpu_spec",
    "gpus",
    "model",
    "model_spec",
    "models",
    "node_size",
    "spellings",
]
