"""Providers by name: what is understood, and one clear line for what is not."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from servers import MisbehavingServer

from shardwise.agent import providers
from shardwise.agent.llm_call import describe, secrets_of
from shardwise.agent.providers import PROVIDERS, LlmSpec, chat_model, check_llm, parse_llm_spec
from shardwise.agent.replay_model import ReplayModel
from shardwise.engine.errors import ConfigError
from shardwise.traces import TraceWriter


@pytest.mark.parametrize(
    ("spec", "provider", "model"),
    [
        ("heuristic", "heuristic", ""),
        (" Heuristic ", "heuristic", ""),
        ("openai:gpt-x", "openai", "gpt-x"),
        ("OpenAI: gpt-x", "openai", "gpt-x"),
        ("ollama:qwen3:8b", "ollama", "qwen3:8b"),
        ("vllm:meta-llama/Llama-3", "vllm", "meta-llama/Llama-3"),
        ("claude:opus", "anthropic", "opus"),
        ("gemini:pro", "google", "pro"),
        ("llama.cpp:x", "llamacpp", "x"),
    ],
)
def test_specs_are_understood(spec: str, provider: str, model: str) -> None:
    assert parse_llm_spec(spec) == LlmSpec(provider, model)
    assert parse_llm_spec(str(parse_llm_spec(spec))) == parse_llm_spec(spec)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("opnai:gpt-x", "nearest: openai"),
        ("antropic:x", "nearest: anthropic"),
        ("heuristics", "nearest: heuristic"),
        ("zzz:x", "known: anthropic, google"),
        ("", "unknown llm provider"),
        ("openai", "needs a model name, as in 'openai:MODEL'"),
        ("openai:", "needs a model name"),
        ("heuristic:x", "takes no model name"),
        ("replay", "needs a trace"),
        ("replay:", "needs a trace"),
        ("replay:/no/such/trace.jsonl", "there is no trace at '/no/such/trace.jsonl'"),
    ],
)
def test_bad_specs_get_one_line(spec: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_llm_spec(spec)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.field == "llm"


@pytest.mark.parametrize("name", [name for name, row in PROVIDERS.items() if row.needs_key])
def test_a_missing_key_names_the_variable(name: str) -> None:
    for make in (chat_model, check_llm):
        with pytest.raises(ConfigError, match=f"no API key; set {PROVIDERS[name].key_env[0]}"):
            make(f"{name}:m", environ={})
        with pytest.raises(ConfigError, match="no API key"):
            make(f"{name}:m", environ={PROVIDERS[name].key_env[0]: " "})
    assert check_llm(f"{name}:m", environ={PROVIDERS[name].key_env[0]: "sk-abcdefgh"}).provider == name
    assert check_llm(f"{name}:m", environ={}, api_key="sk-abcdefgh").is_live
    assert check_llm("heuristic", environ={}).is_live is False


def test_a_malformed_key_is_refused_without_being_shown() -> None:
    for key in ("sk-abc def", "sk-abc\ndef", "schlüssel-ß"):
        with pytest.raises(ConfigError) as caught:
            chat_model("openai:m", api_key=key, environ={})
        assert key not in str(caught.value)
        assert "openai:m" in str(caught.value)


@pytest.mark.parametrize("name", [name for name, row in PROVIDERS.items() if row.extra])
def test_a_missing_package_names_the_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, PROVIDERS[name].module, None)
    with pytest.raises(ConfigError, match=rf"pip install 'shardwise\[{PROVIDERS[name].extra}\]'"):
        chat_model(f"{name}:m", api_key="sk-abcdefgh", environ={})


def test_extras_are_those_of_the_package() -> None:
    import tomllib

    pyproject = Path(__file__).parents[2] / "pyproject.toml"
    extras = tomllib.loads(pyproject.read_text())["project"]["optional-dependencies"]
    for name, row in PROVIDERS.items():
        if row.extra:
            assert extras[row.extra][0].startswith(row.module.replace("_", "-")), name


class FakeClient:
    """Stands for a provider's chat model: keeps what it is made with."""

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments


@pytest.mark.parametrize("name", [name for name, row in PROVIDERS.items() if row.extra])
def test_a_model_is_made_with_key_url_timeout_and_no_retries(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = PROVIDERS[name]
    module = types.ModuleType(row.module)
    setattr(module, row.class_name, FakeClient)
    monkeypatch.setitem(sys.modules, row.module, module)
    model: Any = chat_model(
        f"{name}:m",
        api_key="sk-abcdefgh",
        base_url="http://h:1/v1",
        timeout_s=7,
        seed=3,
        max_tokens=5,
        environ={},
    )
    arguments = model.arguments
    assert (arguments["model"], arguments["base_url"]) == ("m", "http://h:1/v1")
    assert arguments.get("timeout", arguments.get("client_kwargs", {}).get("timeout")) == 7
    assert arguments.get("max_retries", 0) <= 1
    assert arguments[row.max_tokens_field] == 5
    assert "temperature" not in arguments
    if row.key_field:
        assert arguments[row.key_field] == "sk-abcdefgh"
    if row.seed_field:
        assert arguments[row.seed_field] == 3


def test_openai_compatible_servers_need_no_key(misbehaving_server: MisbehavingServer) -> None:
    for spec in ("openai:tiny", "vllm:tiny", "llamacpp:tiny"):
        model = chat_model(spec, base_url=misbehaving_server.url, environ={})
        assert str(model.invoke("hi").text) == "hello"
        assert describe(model) == spec
        assert misbehaving_server.keys[-1] == "Bearer none"
        sent = misbehaving_server.requests[-1]
        assert sent["model"] == "tiny"
        assert not {"temperature", "seed", "max_tokens"} & set(sent)
        assert sent["stream"] is False
    for url in ("OPENAI_BASE_URL", "OPENAI_API_BASE"):
        assert chat_model("openai:tiny", environ={url: misbehaving_server.url}).invoke("hi").text == "hello"


def test_what_is_given_is_sent(misbehaving_server: MisbehavingServer) -> None:
    model = chat_model(
        "openai:tiny",
        base_url=misbehaving_server.url,
        api_key="sk-given-key",
        temperature=0.0,
        max_tokens=9,
        seed=4,
    )
    model.invoke("hi")
    sent = misbehaving_server.requests[-1]
    assert (sent["temperature"], sent["seed"]) == (0.0, 4)
    assert sent.get("max_tokens", sent.get("max_completion_tokens")) == 9
    assert misbehaving_server.keys[-1] == "Bearer sk-given-key"
    assert secrets_of(model) == ("sk-given-key",)
    assert "sk-given-key" not in repr(model)


def test_what_the_client_refuses_is_one_line() -> None:
    with pytest.raises(ConfigError) as caught:
        chat_model("openai:m", api_key="sk-abcdefgh", temperature="warm", environ={})  # type: ignore[arg-type]
    assert "temperature = 'warm'" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8000",
        "ftp://x/v1",
        "http://",
        "/v1",
        "http://[::1",
        "http://h:port/v1",
        "http://h:99999/v1",
        "http://a b/v1",
        "http://\N{LLAMA}/v1",
    ],
)
def test_a_bad_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="must be an http") as caught:
        chat_model("openai:m", base_url=url, environ={})
    assert caught.value.field == "base_url"


def test_ollama_host_without_scheme_is_understood() -> None:
    assert providers._url(LlmSpec("ollama", "m"), None, {"OLLAMA_HOST": "box:11434"}) == "http://box:11434"


def test_heuristic_has_no_model_and_replay_has_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="without a chat model"):
        chat_model("heuristic")
    with pytest.raises(ConfigError, match="timeout_s = 0"):
        chat_model("openai:m", api_key="sk-abcdefgh", timeout_s=0)
    with TraceWriter(tmp_path / "t.jsonl", environ={}) as writer:
        writer.append("note", text="no LLM here")
    assert isinstance(chat_model(f"replay:{tmp_path / 't.jsonl'}"), ReplayModel)
    assert isinstance(
        chat_model(f"replay:{tmp_path}".replace(str(tmp_path), str(tmp_path / "t.jsonl"))), ReplayModel
    )


def test_naming_a_provider_imports_nothing_heavy() -> None:
    code = (
        "import sys; import shardwise.traces; import shardwise.agent.errors; "
        "from shardwise.agent.providers import check_llm, parse_llm_spec; "
        "check_llm('openai:m', api_key='sk-abcdefgh'); parse_llm_spec('heuristic'); "
        "heavy = ('torch', 'openai', 'langchain_core', 'langgraph', 'tenacity'); "
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
