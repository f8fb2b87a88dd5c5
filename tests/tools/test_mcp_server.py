"""The tools over MCP: the protocol's life cycle, calls, and mistakes."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.tools.mcp_server import VERSIONS, McpServer

RECIPE = {"model": "llama-3-8b", "cluster": "h100:1x8", "tp": 2, "gbs": 32}


def ask(*messages):
    """The replies to messages that are sent as lines."""
    sink = io.StringIO()
    McpServer(version="1.2").serve(io.StringIO("".join(json.dumps(m) + "\n" for m in messages)), sink)
    return [json.loads(line) for line in sink.getvalue().splitlines()]


def request(method, number=1, **params):
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def test_life_cycle_and_listing():
    replies = ask(
        request("initialize", 0, protocolVersion=VERSIONS[-1], capabilities={}, clientInfo={"name": "t"}),
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        request("tools/list", 1),
        request("ping", 2),
    )
    assert [reply["id"] for reply in replies] == [0, 1, 2]
    assert replies[0]["result"]["protocolVersion"] == VERSIONS[-1]
    tools = {tool["name"]: tool for tool in replies[1]["result"]["tools"]}
    assert set(tools) == {"project", "memory", "legal", "sweep", "catalog"}
    assert all(tool["inputSchema"]["type"] == "object" for tool in tools.values())


def test_an_unknown_version_is_answered_with_the_newest():
    assert ask(request("initialize", protocolVersion="1999"))[0]["result"]["protocolVersion"] == VERSIONS[0]


@pytest.mark.parametrize(
    ("name", "arguments", "key"),
    [
        ("project", {"recipe": RECIPE}, "tokens_per_s_per_gpu"),
        ("memory", {"recipe": RECIPE}, "peak_bytes"),
        ("legal", {"recipe": {**RECIPE, "tp": 3}}, "violations"),
        ("memory", {"recipe": {**RECIPE, "tp": 3}}, "violations"),
        ("sweep", {"recipe": RECIPE, "fixed": ["recompute", "dp_sharding"], "top": 2}, "best"),
        ("catalog", {}, "gpus"),
    ],
)
def test_calls(name, arguments, key):
    result = ask(request("tools/call", name=name, arguments=arguments))[0]["result"]
    assert result["isError"] is False
    assert result["structuredContent"][key]
    assert json.loads(result["content"][0]["text"]) == result["structuredContent"]


@pytest.mark.parametrize(
    "arguments",
    [{}, {"recipe": 3}, {"recipe": {"model": "nope", "cluster": "h100:1x8"}}, {"recipe": RECIPE, "extra": 1}],
)
def test_mistakes_in_arguments_are_results(arguments):
    result = ask(request("tools/call", name="project", arguments=arguments))[0]["result"]
    assert result["isError"] is True
    assert "\n" not in result["structuredContent"]["error"]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("nonsense", -32700),
        ("[1]", -32600),
        ('{"id": 1, "method": "ping"}', -32600),
        ('{"jsonrpc": "2.0", "id": 1, "method": "fly"}', -32601),
        ('{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": [1]}', -32602),
        ('{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "fly"}}', -32602),
    ],
)
def test_protocol_errors(line, code):
    assert McpServer().answer(line)["error"]["code"] == code


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60))
def test_no_line_breaks_the_server(line):
    reply = McpServer().answer(line)
    assert reply is None or "error" in reply
