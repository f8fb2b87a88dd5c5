"""The words that the LLM reads: versioned templates in text files, and their loader."""

from __future__ import annotations

from shardwise.prompts.loader import Prompt, load

__all__ = ["Prompt", "load"]
