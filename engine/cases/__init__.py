"""Measured cases: reading them and turning each into a recipe, every spelling normalised here."""

from shardwise.engine.cases.interpret import Interpretation, interpret, to_recipe
from shardwise.engine.cases.reading import Case, read_cases
from shardwise.engine.cases.scope import Unscorable

__all__ = ["Case", "Interpretation", "Unscorable", "interpret", "read_cases", "to_recipe"]
