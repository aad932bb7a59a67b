"""Tools of a real MCP server: its schemas, its answers, its errors, and a process that ends with the episode."""

import sys
import time
from pathlib import Path

import pytest
from env_examples import call, conversation, played

from penstock.core.errors import EnvError, SpecError
from penstock.envs.making import env_class
from penstock.envs.spec import EnvironmentSpec
from penstock.envs.tools import ToolEnv

SERVER = """
import os, sys
from mcp.server import MCPServer
from mcp.types import ToolAnnotations

server = MCPServer("counting")
calls = 0

@server.tool()
def count(step: int = 1) -> str:
    "Counts on."
    global calls
    calls += step
    return f"{calls} {os.getpid()}"

@server.tool()
def fail() -> str:
    "Never works."
    raise ValueError("out of paper")

@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def look() -> str:
    "Changes nothing."
    return "same"

server.run()
"""


@pytest.fixture
def tools(threads, tmp_path):
    (tmp_path / "server.py").write_text(SERVER)
    options = {"tools": [f"mcp:{sys.executable} {tmp_path / 'server.py'}"]}
    return lambda: conversation(ToolEnv, threads, deadline=60.0, options=options)


def test_an_episode_has_a_session_whose_server_ends_with_it(tools):
    said = [call("count"), call("count", step=2), call("fail"), call("count", step="x"), call("none"), "done"]
    sample, heard = played(tools(), said)
    first, second = heard[0].split(), heard[1].split()
    assert (first[0], second[0], first[1]) == ("1", "3", second[1])
    assert heard[2].startswith("error: EnvError: Error executing tool fail")
    assert heard[3] == 'error: count: the argument "step" must be integer'
    assert heard[4] == 'error: there is no tool "none"; there are: count, fail, look'
    assert sample.extras["episode"]["failed_calls"] == 1.0
    assert_ends(int(first[1]))
    _, again = played(tools(), [call("count")])
    assert again[0].split()[0] == "1"


def test_only_a_tool_that_says_that_it_is_harmless_leaves_the_episode_repeatable(tools):
    episodes = tools(), tools()
    assert played(episodes[0], [call("look")])[1] == ["same"]
    played(episodes[1], [call("count")])
    assert [episode.env.repeatable for episode in episodes] == [True, False]


def assert_ends(process):
    until = time.monotonic() + 20
    while (Path("/proc") / str(process)).exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not (Path("/proc") / str(process)).exists()


def test_a_server_that_is_not_there_fails_the_episode(threads):
    with pytest.raises(EnvError, match="mcp:/no/such/server"):
        played(conversation(ToolEnv, threads, options={"tools": ["mcp:/no/such/server"]}), ["a"])


def test_an_empty_name_is_refused_before_anything_starts():
    with pytest.raises(SpecError, match="name a command or a URL"):
        env_class(EnvironmentSpec(function="tools", options={"tools": ["mcp:"]}), None)
