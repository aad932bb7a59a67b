"""Environments behind a real OpenEnv server in a process of its own: a session for each episode, and it ends with it."""

import asyncio
import subprocess
import sys

import pytest
from env_examples import named, playing, rewards_of_turns, seeded

from penstock.core.columns import was_cut
from penstock.core.errors import EnvError, SpecError
from penstock.envs.making import env_class
from penstock.envs.spec import EnvironmentSpec

pytest.importorskip("openenv", reason="needs the extra openenv")

SERVER = """
import socket

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app


class Say(Action):
    message: str


class Heard(Observation):
    message: str = ""


class Counting(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, start=0, **kwargs):
        self.left, self.said = seed + start, []
        return Heard(message=f"say {self.left}")

    def step(self, action, timeout_s=None, **kwargs):
        if action.message == "crash":
            raise RuntimeError("the simulator is gone")
        right = action.message == str(self.left)
        self.left -= 1
        return Heard(message=f"say {self.left}", reward=float(right), done=self.left == 0)

    @property
    def state(self):
        return State(step_count=self.left)


listening = socket.socket()
listening.bind(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
app = create_fastapi_app(Counting, Say, Heard, max_concurrent_envs=2)
uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listening])
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    path = tmp_path_factory.mktemp("openenv") / "server.py"
    path.write_text(SERVER)
    with subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, text=True) as process:
        yield f"openenv:http://127.0.0.1:{int(process.stdout.readline())}"
        process.terminate()


def session(server, threads, seed=2, **fields):
    return named(server, threads, seeded(seed), deadline=60.0, **fields)


def test_an_episode_is_a_session_with_rewards_of_turns_and_an_end(server, threads):
    episode = session(server, threads, options={"start": 1})
    sample, heard = asyncio.run(playing(episode, ["3", "5", "1"]))
    assert heard == ["say 3", "say 2", "say 1", None]
    assert rewards_of_turns(sample) == [1.0, 0.0, 1.0]
    assert not was_cut(sample)


def test_sessions_side_by_side_keep_apart_and_their_places_are_free_again(server, threads):
    async def rounds():
        found = []
        for number in range(3):
            pair = (playing(session(server, threads, n), ["0"] * n) for n in (2, 3 + number))
            found += await asyncio.gather(*pair)
        return found

    heard = [heard for _, heard in asyncio.run(rounds())]
    assert [one[0] for one in heard] == ["say 2", "say 3", "say 2", "say 4", "say 2", "say 5"]
    assert all(one[-1] is None for one in heard)


def test_an_episode_waits_for_one_of_the_servers_places(server, threads):
    async def four():
        return await asyncio.gather(*(playing(session(server, threads), ["0"] * 2) for _ in range(4)))

    assert [heard for _, heard in asyncio.run(four())] == [["say 2", "say 1", None]] * 4


def test_a_server_that_stays_full_fails_the_episode_and_says_so(server, threads):
    async def three():
        episodes = [session(server, threads, options={"wait": wait}) for wait in (30, 30, 0.1)]
        try:
            for episode in episodes:
                await episode.reset()
        finally:
            for episode in episodes:
                await episode.close()

    with pytest.raises(EnvError, match=r"no free place for 0.1 s; raise max_concurrent_envs"):
        asyncio.run(three())


def test_what_the_server_raises_and_fields_that_are_not_there_name_themselves(server, threads):
    with pytest.raises(EnvError, match="the simulator is gone"):
        asyncio.run(playing(session(server, threads), ["crash"]))
    with pytest.raises(EnvError, match='no field "text"; set the option shown to one of message'):
        asyncio.run(playing(session(server, threads, options={"shown": "text"}), ["2"]))


def test_a_name_that_is_no_address_is_refused_before_the_run():
    with pytest.raises(SpecError, match=r"name the server's address"):
        env_class(EnvironmentSpec(function="openenv:echo"), None)
