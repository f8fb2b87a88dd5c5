"""The tools over the Model Context Protocol, on standard input and output.

The protocol is JSON-RPC 2.0, one message a line (specification 2025-06-18, "stdio" transport). Served are the
life cycle (``initialize``, ``ping``) and tools (``tools/list``, ``tools/call``); a mistake in a call's
arguments is a result with ``isError``, as the specification asks, so that the model can mend it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import IO, Any

from shardwise.tools.standalone import STANDALONE, StandaloneTool, call

VERSIONS = ("2025-06-18", "2025-03-26", "2024-11-05")
"""Protocol versions that are spoken, newest first; their tool messages are the same."""
MAX_LINE = 4_000_000
"""Longest message that is read, characters."""

_PARSE, _REQUEST, _METHOD, _PARAMS = -32700, -32600, -32601, -32602


class McpServer:
    """Answers messages; holds no state beyond its tools."""

    def __init__(self, tools: Sequence[StandaloneTool] = STANDALONE, *, version: str = "0") -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._version = version

    def serve(self, source: IO[str], sink: IO[str]) -> None:
        """Answer every line of ``source`` until it ends."""
        while line := source.readline(MAX_LINE):
            reply = self.answer(line)
            if reply is not None:
                sink.write(json.dumps(reply, allow_nan=False) + "\n")
                sink.flush()

    def answer(self, line: str) -> dict[str, Any] | None:
        """The reply to one message; None for a notification, a reply or an empty line."""
        if not line.strip():
            return None
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            return _failed(None, _PARSE, "not JSON")
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            return _failed(None, _REQUEST, "not a JSON-RPC 2.0 message")
        if "id" not in message or "method" not in message:
            return None
        params = message.get("params", {})
        if not isinstance(params, dict):
            return _failed(message["id"], _PARAMS, "params must be an object")
        return self._method(message["id"], message["method"], params)

    def _method(self, number: Any, method: Any, params: dict[str, Any]) -> dict[str, Any]:
        if method == "initialize":
            asked = params.get("protocolVersion")
            result: dict[str, Any] = {
                "protocolVersion": asked if asked in VERSIONS else VERSIONS[0],
                "capabilities": {"tools": {"listChanged": False}},
                "serverInfo": {"name": "shardwise", "version": self._version},
            }
        elif method == "ping":
            result = {}
        elif method == "tools/list":
            result = {"tools": [_described(tool) for tool in self._tools.values()]}
        elif method == "tools/call":
            tool = self._tools.get(str(params.get("name")))
            if tool is None:
                known = ", ".join(self._tools)
                return _failed(number, _PARAMS, f"unknown tool {params.get('name')!r}; known: {known}")
            ok, content = call(tool, params.get("arguments") or {})
            text = json.dumps(content, allow_nan=False)
            result = {
                "content": [{"type": "text", "text": text}],
                "structuredContent": content,
                "isError": not ok,
            }
        else:
            return _failed(number, _METHOD, f"unknown method {method!r}")
        return {"jsonrpc": "2.0", "id": number, "result": result}


def _described(tool: StandaloneTool) -> dict[str, Any]:
    return {
        "name": tool.name,
        "description": tool.description,
        "inputSchema": tool.args.model_json_schema(),
        "annotations": {"readOnlyHint": True},
    }


def _failed(number: Any, code: int, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message}}
