"""Peak memory per pipeline stage. ``table.py`` puts the parts together; each other module is one part."""

from shardwise.engine.memory.recomputation import recomputed_share, recomputed_share_of_model
from shardwise.engine.memory.states import gradient_bytes, optimizer_bytes, shard_sizes
from shardwise.engine.memory.table import MemoryTable, memory_of, memory_table, report
from shardwise.engine.memory.verdict import usable_bytes, verdict

__all__ = [
    "MemoryTable",
    "gradient_bytes",
    "memory_of",
    "memory_table",
    "optimizer_bytes",
    "recomputed_share",
    "recomputed_share_of_model",
    "report",
    "shard_sizes",
    "usable_bytes",
    "verdict",
]
