"""One question to the LLM: recorded, retried, answered. Signature first; see :func:`ask`."""
