"""Fixtures of the agent's tests: servers on loopback. Nothing here leaves the machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from servers import OK, LocalLlm, MisbehavingServer, local_llm_files


@pytest.fixture(scope="session", autouse=True)
def _alone() -> Iterator[None]:
    """Loopback is reached directly, and nothing is reported anywhere, whatever the environment says."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("NO_PROXY", "no_proxy"):
            patch.setenv(name, "127.0.0.1,localhost")
        for name in (
            "LANGSMITH_TRACING",
            "LANGSMITH_TRACING_V2",
            "LANGCHAIN_TRACING",
            "LANGCHAIN_TRACING_V2",
        ):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="session")
def _one_server() -> Iterator[MisbehavingServer]:
    server = MisbehavingServer()
    yield server
    server.close()


@pytest.fixture
def misbehaving_server(_one_server: MisbehavingServer) -> MisbehavingServer:
    """A loopback server that answers as it is told: errors, garbage, silence. See ``servers``."""
    _one_server.script(OK)
    return _one_server


@pytest.fixture(scope="session")
def local_llm_url() -> Iterator[str]:
    """Base URL of a real language model behind a real HTTP server (one for the whole session)."""
    model, why_not = local_llm_files()
    if model is None:
        pytest.skip(why_not)
    server = LocalLlm(model)
    yield server.url
    server.close()
