"""Tasks of real verifiers tasksets: their prompt, their tools in a process of their own, their rewards over a trace."""

import asyncio
import os
import sys
from dataclasses import replace

import pytest
from env_examples import named, playing, rewards_of_turns, seeded

from penstock.core.errors import EnvError, SpecError
from penstock.envs.making import env_class
from penstock.envs.spec import EnvironmentSpec

pytest.importorskip("verifiers", reason="needs the package verifiers, in an environment of its own: make test-verifiers")

SUMS = """
import verifiers.v1 as vf


class SumData(vf.TaskData):
    answer: int


class SumConfig(vf.TasksetConfig):
    size: int = 4


class SumTask(vf.Task[SumData]):
    async def setup(self, trace, runtime):
        trace.info["made"] = (await runtime.run(["echo", "ready"], {})).stdout.strip()

    @vf.reward(weight=2.0)
    async def right(self, trace) -> float:
        assert trace.info["made"] == "ready"
        assert [node.message.role for node in trace.nodes] == ["system", "user", "assistant"]
        return float(trace.nodes[-1].message.content.strip() == str(self.data.answer))

    @vf.metric
    async def letters(self, trace) -> float:
        return float(len(trace.nodes[-1].message.content))


class SumSet(vf.Taskset[SumTask, SumConfig]):
    def load(self):
        for n in range(self.config.size):
            yield SumTask(SumData(prompt=f"{n} + {n} =", system_prompt="Only the number.", answer=2 * n), self.config.task)


__all__ = ["SumSet"]
"""
LOOK = """
import verifiers.v1 as vf


class Look(vf.Toolset[vf.ToolsetConfig]):
    @vf.tool
    def look(self, word: str) -> str:
        "What a word means."
        return {"blue": "a colour"}.get(word, "unknown")


class LookData(vf.TaskData):
    answer: str


class LookTask(vf.Task[LookData]):
    @classmethod
    def toolsets(cls, config):
        return [Look(vf.ToolsetConfig())]

    @vf.reward
    async def right(self, trace) -> float:
        said = [node.message.content for node in trace.nodes if node.sampled]
        return float(self.data.answer in said[-1]) / len(said)


class LookSet(vf.Taskset[LookTask]):
    def load(self):
        yield LookTask(LookData(prompt="blue?", answer="colour"), self.config.task)


class Opened(vf.Taskset[LookTask]):
    def load(self):
        yield LookTask(LookData(answer="colour"), self.config.task)


__all__ = ["LookSet"]

if __name__ == "__main__":
    Look.run()
"""


@pytest.fixture(autouse=True, scope="module")
def _tasksets(tmp_path_factory):
    """Two installed tasksets; a third that a user opens."""
    place = tmp_path_factory.mktemp("tasksets")
    (place / "sums_set.py").write_text(SUMS)
    (place / "look_set.py").write_text(LOOK)
    (place / "opened_set.py").write_text(LOOK.replace('__all__ = ["LookSet"]', '__all__ = ["Opened"]'))
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(place))
        patched.setenv("PYTHONPATH", os.pathsep.join([str(place), *filter(None, sys.path)]))
        yield


@pytest.mark.parametrize(("said", "reward"), [("6", 2.0), ("7", 0.0)])
def test_a_task_is_asked_and_scored_by_its_own_rewards(said, reward, threads):
    sample, heard = asyncio.run(playing(named("verifiers:sums_set", threads, seeded(3), deadline=60.0), [said]))
    assert heard == ["Only the number.\n3 + 3 =", None]
    assert sample.extras["turns"][0][2] == reward
    assert sample.extras["episode"]["letters"] == 1.0


def test_its_tools_are_called_and_the_trace_has_every_turn(threads):
    call = '<tool_call>{"name": "look", "arguments": {"word": "blue"}}</tool_call>'
    sample, heard = asyncio.run(playing(named("verifiers:look_set", threads, seeded(0), deadline=120.0), [call, "a colour"]))
    assert heard == ["blue?", "a colour", None]
    assert rewards_of_turns(sample) == [None, 0.5]


def test_a_task_that_is_not_there_names_how_many_there_are(threads):
    with pytest.raises(EnvError, match="has 2 tasks; there is no task 3"):
        asyncio.run(playing(named("verifiers:sums_set", threads, seeded(3), deadline=60.0, options={"size": 2}), ["6"]))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("no_such_set", {}, "ModuleNotFoundError"),
        ("sums_set", {"sise": 3}, "sise"),
        ("sums_set", {"size": 0}, "has no tasks"),
        ("opened_set", {}, "needs a user who opens, so it needs a harness"),
    ],
)
def test_what_needs_more_is_refused_before_the_run(name, options, message):
    spec = EnvironmentSpec(function=f"verifiers:{name}", options=options)
    with pytest.raises(SpecError, match=message):
        env_class(replace(spec), None)
