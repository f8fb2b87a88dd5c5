"""The analytic memory pre-filter: rejects what cannot fit before any device or oracle time is spent."""

from shardwise.engine.results import DEFAULT_MARGIN
from shardwise.memory_filter.filter import FilterResult, Reasons, filter_recipe, filter_table

__all__ = ["DEFAULT_MARGIN", "FilterResult", "Reasons", "filter_recipe", "filter_table"]
