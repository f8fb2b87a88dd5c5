"""Chat models by name: ``openai:MODEL``, ``anthropic:MODEL``, ... and any OpenAI-compatible server by URL.

Each provider is one row of :data:`PROVIDERS`. Nothing of LangChain is imported before a model is made,
and only the package of the provider that was asked for. Keys come from the environment or from the
caller, go into the client and nowhere else.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from shardwise.engine.errors import ConfigError, unknown_name
from shardwise.engine.spec import one_line

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

DEFAULT_TIMEOUT_S = 60.0
"""Seconds that one call may stay silent."""

_NO_KEY = "none"
"""Sent to servers that want no key: the client insists on sending one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """How a provider's chat model is made."""

    module: str
    """Integration package, as it is imported."""
    class_name: str
    extra: str
    """The extra of shardwise that installs it; empty when it always comes along."""
    key_env: tuple[str, ...] = ()
    """Environment variables that may hold the key, the first being the usual one."""
    needs_key: bool = True
    key_field: str = ""
    """Constructor argument for the key."""
    url_field: str = "base_url"
    """Constructor argument for the address; empty when it has none."""
    default_url: str = ""
    url_env: tuple[str, ...] = ()
    """Environment variables that name another address."""
    options: Mapping[str, Any] | None = None
    """Further constructor arguments."""
    timeout_field: str = "timeout"
    """Constructor argument for the timeout; empty when only the HTTP client takes one."""
    whole_seconds: bool = False
    """Whether the timeout must be a whole number."""
    max_tokens_field: str = "max_tokens"
    seed_field: str = ""
    """Constructor argument for the sampling seed; empty when the provider takes none."""


_PLAIN = {"max_retries": 0, "disable_streaming": True}
"""One answer a call: the agent has its own retries (:mod:`shardwise.agent.retry`)."""

_OPENAI = Provider(
    module="langchain_openai",
    class_name="ChatOpenAI",
    extra="",
    key_env=("OPENAI_API_KEY",),
    key_field="api_key",
    url_env=("OPENAI_BASE_URL", "OPENAI_API_BASE"),
    options=_PLAIN,
    seed_field="seed",
)
_LOCAL = replace(_OPENAI, needs_key=False, url_env=())
"""A server of one's own that speaks OpenAI's protocol."""

PROVIDERS: dict[str, Provider] = {
    "openai": _OPENAI,
    "anthropic": Provider(
        module="langchain_anthropic",
        class_name="ChatAnthropic",
        extra="anthropic",
        key_env=("ANTHROPIC_API_KEY",),
        key_field="api_key",
        url_env=("ANTHROPIC_BASE_URL", "ANTHROPIC_API_URL"),
        options=_PLAIN,
    ),
    "google": Provider(
        module="langchain_google_genai",
        class_name="ChatGoogleGenerativeAI",
        extra="google",
        key_env=("GOOGLE_API_KEY", "GEMINI_API_KEY"),
        key_field="google_api_key",
        options={"max_retries": 1, "disable_streaming": True},  # counts calls, not repeats
        max_tokens_field="max_output_tokens",
        seed_field="seed",
    ),
    "mistral": Provider(
        module="langchain_mistralai",
        class_name="ChatMistralAI",
        extra="mistral",
        key_env=("MISTRAL_API_KEY",),
        key_field="api_key",
        options=_PLAIN,
        whole_seconds=True,
        seed_field="random_seed",
    ),
    "ollama": Provider(
        module="langchain_ollama",
        class_name="ChatOllama",
        extra="ollama",
        needs_key=False,
        url_env=("OLLAMA_HOST",),
        options={"disable_streaming": True},
        timeout_field="",
        max_tokens_field="num_predict",
        seed_field="seed",
    ),
    "vllm": replace(_LOCAL, key_env=("VLLM_API_KEY",), default_url="http://127.0.0.1:8000/v1"),
    "llamacpp": replace(_LOCAL, key_env=("LLAMA_API_KEY",), default_url="http://127.0.0.1:8080/v1"),
}
"""Provider name -> how to make its model."""

_ALIASES = {
    "claude": "anthropic",
    "gpt": "openai",
    "gemini": "google",
    "google_genai": "google",
    "google-genai": "google",
    "mistralai": "mistral",
    "llama.cpp": "llamacpp",
    "llama-cpp": "llamacpp",
}


@dataclass(frozen=True, slots=True)
class LlmSpec:
    """Who proposes. ``provider``: a key of ``PROVIDERS``, ``heuristic``, or ``replay``."""

    provider: str
    model: str = ""
    """Model name, or the trace's path for ``replay``."""

    @property
    def is_live(self) -> bool:
        """Whether a model must be reached over the network."""
        return self.provider in PROVIDERS

    def __str__(self) -> str:
        return f"{self.provider}:{self.model}" if self.model else self.provider


def parse_llm_spec(spec: str) -> LlmSpec:
    """``spec`` as :class:`LlmSpec`: ``heuristic``, ``replay:TRACE`` or ``PROVIDER:MODEL``.

    Raises :class:`ConfigError` for an unknown provider (with the nearest names), a missing model name,
    or a trace that is not there. Keys and packages are looked at when the model is made.
    """
    head, colon, rest = spec.strip().partition(":")
    name = _ALIASES.get(head.strip().lower(), head.strip().lower())
    rest = rest.strip()
    if name == "heuristic":
        if rest:
            raise ConfigError(f"llm {spec!r}: 'heuristic' takes no model name", field="llm")
        return LlmSpec("heuristic")
    if name == "replay":
        if not rest:
            raise ConfigError(
                f"llm {spec!r}: needs a trace, as in 'replay:runs/my-run/trace.jsonl'", field="llm"
            )
        if not os.path.exists(rest):
            raise ConfigError(f"llm {spec!r}: there is no trace at {rest!r}", field="llm")
        return LlmSpec("replay", rest)
    if name not in PROVIDERS:
        near = unknown_name("llm provider", head.strip(), [*PROVIDERS, "heuristic", "replay"])
        raise ConfigError(f"{near}; write PROVIDER:MODEL, 'heuristic' or 'replay:TRACE'", field="llm")
    if not colon or not rest:
        raise ConfigError(f"llm {spec!r}: needs a model name, as in '{name}:MODEL'", field="llm")
    return LlmSpec(name, rest)


def check_llm(
    spec: str,
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> LlmSpec:
    """:func:`parse_llm_spec`, and whether the key that the provider needs is there: what can be said at once,
    without importing anything. Raises :class:`ConfigError` naming the environment variable."""
    parsed = parse_llm_spec(spec)
    if parsed.is_live:
        env = os.environ if environ is None else environ
        url = _url(parsed, base_url, env)
        _key(parsed, api_key, url, env)
    elif base_url:
        raise ConfigError(
            f"base_url = {base_url!r}: {parsed.provider!r} asks no server; write --llm openai:MODEL",
            field="base_url",
        )
    return parsed


def chat_model(
    spec: str,
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    temperature: float | None = None,
    max_tokens: int | None = None,
    seed: int | None = None,
    environ: Mapping[str, str] | None = None,
) -> BaseChatModel:
    """The chat model that ``spec`` names, without retries of its own.

    With ``base_url`` any provider that takes one is reached there; ``openai:MODEL`` then means any
    OpenAI-compatible server, and a key is optional. ``temperature``, ``max_tokens`` and ``seed`` are
    sent only when they are given, since some models refuse them. ``replay:TRACE`` gives a model that
    answers from the trace.

    Raises :class:`ConfigError`: unknown provider, missing key (naming the variable), missing package
    (naming the extra), bad address, or ``heuristic``, which has no model.
    """
    env = os.environ if environ is None else environ
    parsed = parse_llm_spec(spec)
    if parsed.provider == "heuristic":
        raise ConfigError("llm 'heuristic' proposes without a chat model", field="llm")
    if parsed.provider == "replay":
        from shardwise.agent.replay_model import ReplayModel

        return ReplayModel.from_trace(parsed.model)
    if timeout_s <= 0:
        raise ConfigError(f"timeout_s = {timeout_s:g}: must be above 0 seconds", field="timeout_s")
    row = PROVIDERS[parsed.provider]
    url = _url(parsed, base_url, env)
    key = _key(parsed, api_key, url, env)
    arguments: dict[str, Any] = {
        "model": parsed.model,
        "metadata": {"llm": str(parsed)},
        **(row.options or {}),
    }
    if row.timeout_field:
        arguments[row.timeout_field] = math.ceil(timeout_s) if row.whole_seconds else timeout_s
    else:
        arguments["client_kwargs"] = {"timeout": timeout_s}
    if url:
        arguments[row.url_field] = url
        if row.class_name == "ChatOpenAI":
            arguments["use_responses_api"] = False  # compatible servers know chat completions; few know more
    if row.key_field and key:
        arguments[row.key_field] = key
    sampling = {row.max_tokens_field: max_tokens, row.seed_field: seed, "temperature": temperature}
    arguments.update({field: value for field, value in sampling.items() if field and value is not None})
    return _make(parsed.provider, row, arguments)


def _make(name: str, row: Provider, arguments: dict[str, Any]) -> BaseChatModel:
    try:
        module = import_module(row.module)
    except ModuleNotFoundError as err:
        package = row.module.replace("_", "-")
        missing = "" if err.name == row.module else f" complete ({err.name} is missing)"
        extra = f"[{row.extra}]" if row.extra else ""
        raise ConfigError(
            f"llm provider {name!r} needs the package {package!r}{missing}: pip install 'shardwise{extra}'",
            field="llm",
        ) from err
    try:
        model: BaseChatModel = getattr(module, row.class_name)(**arguments)
    except ValidationError as err:
        raise ConfigError(one_line(err, f"llm {name}"), field="llm") from err
    return model


def _url(parsed: LlmSpec, base_url: str | None, env: Mapping[str, str]) -> str:
    row = PROVIDERS[parsed.provider]
    url = base_url or next((env[name] for name in row.url_env if env.get(name)), "") or row.default_url
    if url and parsed.provider == "ollama" and "://" not in url:
        url = f"http://{url}"  # OLLAMA_HOST is customarily written without a scheme
    if url and not _is_address(url):
        raise ConfigError(
            f"base_url = {url!r}: must be an http(s) address, as in http://host:8000/v1", field="base_url"
        )
    return url


def _is_address(url: str) -> bool:
    """Whether an HTTP client can make sense of ``url``; none is asked, since importing one takes time."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:  # brackets without an address between, a port that is none
        return False
    named = bool(host) and all(char.isalnum() or char in "-._:%" for char in host)
    plain = url.isprintable() and " " not in url
    return plain and named and port != 0 and parts.scheme in ("http", "https")


def _key(parsed: LlmSpec, api_key: str | None, url: str, env: Mapping[str, str]) -> str:
    row = PROVIDERS[parsed.provider]
    key = (api_key or next((env[name] for name in row.key_env if env.get(name)), "")).strip()
    if key:
        if any(char.isspace() or not char.isprintable() or ord(char) > 126 for char in key):
            raise ConfigError(
                f"the key for {parsed} holds a space or a character that no key has", field="api_key"
            )
        return key
    if row.needs_key and not url:
        raise ConfigError(f"llm {str(parsed)!r}: no API key; set {' or '.join(row.key_env)}", field="llm")
    return _NO_KEY if row.key_field else ""
