"""Fixtures of the agent's tests: servers on loopback. Nothing here leaves the machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from servers import LocalLlm, MisbehavingServer, local_llm_files


@pytest.fixture
def misbehaving_server() -> Iterator[MisbehavingServer]:
    """A loopback server that answers as it is told: errors, garbage, silence. See ``servers``."""
    server = MisbehavingServer()
    yield server
    server.close()


@pytest.fixture(scope="session")
def local_llm_url() -> Iterator[str]:
    """Base URL of a real language model behind a real HTTP server (one for the whole session)."""
    model, why_not = local_llm_files()
    if model is None:
        pytest.skip(why_not)
    server = LocalLlm(model)
    yield server.url
    server.close()
