"""The LLM's tools: thin typed wrappers over the engine that cost no oracle call."""
