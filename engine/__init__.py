"""The projection engine: what a training step costs in time and memory. Knows no LLM and no agent."""
