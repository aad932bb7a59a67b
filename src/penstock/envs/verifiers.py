"""Tasks of the package verifiers: ``verifiers:TASKSET``. The policy answers here; setup, tools and scoring are the task's own.

verifiers 0.4 has no environment that is stepped: a harness, a program, plays and calls a model over HTTP. What a task defines
without one is used as it is (prompt, toolsets, ``setup``, ``finalize``, rewards and metrics over a trace); turns between are
those of the environment ``tools``. Users that a program plays and environments of several agents need a harness.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.core.errors import EnvError, SpecError, blame
from penstock.envs.env import Said, Turn
from penstock.envs.mcp import PREFIX, McpSession
from penstock.envs.tools import ToolEnv

OURS = ("calls", "corrections", "penalty", "seconds", "longest", "world")


class Verifiers(ToolEnv):
    """One task: the row's seed is its number in the taskset. It ends with the first turn that calls none of the task's tools;
    then, or after the last turn that the limits allow, the task scores what was said (``trace.reward``, metrics by name).

    Args:
        tasks: the taskset's tasks.
        options: of :class:`~penstock.envs.tools.ToolEnv`; in specs all others are the taskset's configuration, and ``take``
            bounds a taskset without an end.
    """

    rewards = True

    def __init__(self, columns: Mapping[str, Any], *, name: str, tasks: Any = (), **options: Any) -> None:
        super().__init__(columns, tools=(), **{key: value for key, value in options.items() if key in OURS})
        self.name, self.given = name, tasks
        self.stack = AsyncExitStack()

    @classmethod
    def prepared(cls, options: Mapping[str, Any], base: Path | None) -> Mapping[str, Any]:
        name, take = options["name"], int(options.get("take", 0))
        loaders = _package("utils.loaders")
        with blame(SpecError, f"verifiers:{name}"):
            given = {key: value for key, value in options.items() if key not in (*OURS, "name", "take")}
            taskset = loaders.load_taskset(loaders.taskset_config_type(name).model_validate({**given, "id": name}))
            if not taskset.bounded and not take:
                raise SpecError(f"verifiers:{name} has no end; set the option take to a number of tasks")
            tasks = list(taskset.take(take) if take else taskset)
            if not tasks:
                raise SpecError(f"verifiers:{name} has no tasks")
            if needs := _needs(taskset, tasks[0]):
                raise SpecError(f"verifiers:{name} needs {needs}, so it needs a harness of verifiers; see docs/environments.md")
        return {**{key: options[key] for key in OURS if key in options}, "name": name, "tasks": tasks}

    async def reset(self) -> Any:
        if not 0 <= self.seed < len(self.given):
            raise EnvError(f'verifiers:{self.name} has {len(self.given)} tasks; there is no task {self.seed} (column "seed")')
        self.task, trace, runtimes = self.given[self.seed], _package("trace"), _package("runtimes")
        about = trace.TraceTask(type=type(self.task).__name__, data=self.task.data, key=self.task.key, hash=self.task.hash)
        state = _package("state").state_cls(type(self.task))()
        self.trace = trace.Trace(task=about, state=state, agent=trace.AgentInfo(config=trace.AgentConfig()))
        self.runtime = runtimes.make_runtime(runtimes.SubprocessConfig(), name=self.trace.id)
        await self.runtime.start()
        self.stack.push_async_callback(self.runtime.stop)
        await _package("utils.decorators").invoke(self.task.setup, {"trace": self.trace, "runtime": self.runtime})
        toolsets = type(self.task).toolsets(self.task.config)
        if toolsets:
            urls = await self.stack.enter_async_context(_package("mcp").serve_tools(toolsets, self.runtime))
            self.sessions = [McpSession(f"{PREFIX}{url}") for url in urls.values()]
        await super().reset()
        system, prompt = self.task.data.system_prompt, self.task.data.prompt
        messages = [{"role": "system", "content": system}] if system else []
        one = isinstance(prompt, str)
        messages += [{"role": "user", "content": prompt}] if one else [said.model_dump(exclude_none=True) for said in prompt]
        self._note(messages)
        return messages if self.chat else "\n".join(str(message["content"]) for message in messages)

    async def step(self, said: Said) -> Turn:
        turn = await super().step(said) if self.known else Turn(terminated=True, metrics={"cut_turns": said.finish == "length"})
        self._note([{"role": "assistant", "content": said.text}], sampled=True)
        if isinstance(turn.observation, str):
            self._note([{"role": "user", "content": turn.observation}])
        elif isinstance(turn.observation, list):
            self._note([dict(message) for message in turn.observation])
        if not (turn.terminated or turn.truncated):
            return turn
        last = await self.cut()
        return replace(turn, reward=(turn.reward or 0.0) + last.reward, metrics={**turn.metrics, **last.metrics})

    async def cut(self) -> Any:
        """The task's score of what was said."""
        await _package("utils.decorators").invoke(self.task.finalize, {"trace": self.trace, "runtime": self.runtime})
        await self.task.score(self.trace, self.runtime)
        measured = {name: float(value) for name, value in self.trace.metrics.items() if value is not None}
        return Turn(reward=self.trace.reward, truncated=True, metrics=measured)

    def _note(self, messages: list[dict[str, Any]], sampled: bool = False) -> None:
        graph, kinds = _package("graph"), _package("types")
        roles = {"system": kinds.SystemMessage, "user": kinds.UserMessage, "assistant": kinds.AssistantMessage}
        for message in messages:
            made = roles.get(message["role"], kinds.ToolMessage).model_validate(message)
            parent = len(self.trace.nodes) - 1 if self.trace.nodes else None
            self.trace.nodes.append(graph.MessageNode(parent=parent, message=made, sampled=sampled))

    async def close(self) -> None:
        await super().close()
        await self.stack.aclose()


def _needs(taskset: Any, task: Any) -> str:
    """What a task needs that is not there without a harness; empty: nothing."""
    state, servers = _package("state"), type(task).toolsets(task.config)
    plain = _package("mcp").Toolset
    needs = {
        "a container": task.NEEDS_CONTAINER or task.data.image is not None,
        "a user who opens": task.data.prompt is None,
        "servers that tasks share": type(taskset).toolsets(taskset.config),
        "tools that know the task or its state": any(
            state.state_cls(type(one)) is not state.State or type(one).setup_task is not plain.setup_task for one in servers
        ),
    }
    return next((what for what, needed in needs.items() if needed), "")


def _package(module: str) -> Any:
    """A module of verifiers."""
    try:
        import verifiers.v1
    except ImportError as error:
        raise SpecError(
            "tasksets of verifiers need that package (0.4), in an environment of its own, because it wants other versions of "
            "mcp and openai than the other extras; run: pip install 'penstock[verifiers]'"
        ) from error
    import importlib

    return importlib.import_module(f"{verifiers.v1.__name__}.{module}")
