"""The projection engine: does a training recipe fit, and how fast does it run. Knows no LLM and no agent."""
