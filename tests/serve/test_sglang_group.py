"""SGLang's process group with real processes in it: what the adapter broadcasts is what the server's workers receive."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import uvicorn
from safetensors.torch import load_file

import tiny_models
from penstock.cli.recipe import build
from penstock.config.engine_choice import weights_way
from penstock.config.engines import SGLang
from penstock.core.errors import GenerationError, SpecError, WeightError
from penstock.core.types import WeightUpdate
from penstock.models.files import save_model
from penstock.runtime.engines import EngineStart, opened
from penstock.weights.process_group import EngineGroup
from serving import running
from sglang_group import GroupAnswers
from tiny_models import request

GROUPED = ("--runtime", "procs", "--roles.engine", "SGLang", "--roles.engine.weights", "process group")


def check_engine(run: Any) -> None:
    run.roles.engine.check(run.roles.generators)


@pytest.fixture
def grouped(tiny: Any, tmp_path: Path) -> Callable[..., Any]:
    """``async with grouped(workers=1) as (generator of a run, server)``."""

    @asynccontextmanager
    async def running_group(workers: int = 1) -> AsyncIterator[Any]:
        model = tiny()
        save_model(model, tmp_path / "model")
        answers = GroupAnswers(copy.deepcopy(model), tmp_path, workers, 60.0)
        config = uvicorn.Config(answers, lifespan="off", log_config=None, ws="none", timeout_graceful_shutdown=1)
        try:
            async with running(uvicorn.Server(config)) as url:
                start = EngineStart(tmp_path / "model", torch.device("cpu"), 4, tmp_path / "generator-0")
                async with opened(SGLang(url=url, weights="process group", timeout=60.0), start) as found:
                    yield found.engine, answers
        finally:
            answers.end()

    return running_group


def other(tiny: Any, seed: int) -> list[tuple[str, Any]]:
    model = tiny()
    tiny_models.randomise(model.network, seed=seed)
    return list(model.policy_weights())


async def test_every_worker_receives_every_tensor_and_new_weights_are_the_ones_that_draw(
    grouped: Any, tiny: Any, tmp_path: Path
) -> None:
    async with grouped(workers=2) as (generator, answers):
        for version in (1, 2):
            weights = other(tiny, version)
            await generator.load(WeightUpdate(version, weights))
            for number in range(2):
                received = load_file(tmp_path / f"worker-{number}.safetensors")
                assert received.keys() == dict(weights).keys()
                for name, tensor in weights:
                    assert torch.equal(received[name], tensor), name
            sample = await generator.generate(request(np.array([20, 21]), version, max_new_tokens=8))
            assert set(sample.version_T[sample.action_T].tolist()) == {version}
            np.testing.assert_allclose(sample.logp_T[2:], (await answers.engine.score(sample.tokens_T))[2:], atol=1e-5)
    asked = [path for path, _ in answers.asked]
    assert asked.count("/init_weights_update_group") == 1
    assert asked.count("/update_weights_from_distributed") == 2
    joined, left = (next(body for path, body in answers.asked if path == f"/{verb}_weights_update_group")["group_name"]
                    for verb in ("init", "destroy"))  # fmt: skip
    assert joined == left, "the server leaves the group when the generator does"


async def test_a_server_that_refuses_the_group_leaves_the_old_weights_and_is_asked_again(grouped: Any, tiny: Any) -> None:
    async with grouped() as (generator, answers):
        answers.deaf = True
        with pytest.raises(WeightError, match=r"no process group with .*Failed to initialize custom process group"):
            await generator.load(WeightUpdate(1, other(tiny, 1)))
        assert generator.version == -1
        answers.deaf = False
        await generator.load(WeightUpdate(2, other(tiny, 2)))
        assert generator.version == 2
    names = [body["group_name"] for path, body in answers.asked if path == "/init_weights_update_group"]
    assert len(set(names)) == 2, "a group has a name of its own"


@pytest.mark.parametrize("information", [{"tp_size": 1, "dp_size": 2}, {"tp_size": 1, "pp_size": 2}, {}])
async def test_a_server_whose_processes_have_no_ranks_of_their_own_is_refused(
    grouped: Any, tiny: Any, information: dict[str, int]
) -> None:
    async with grouped(workers=0) as (generator, answers):
        answers.information = information
        with pytest.raises(WeightError, match=r"(_size=2, and a process group needs 1|does not say its tp_size); set roles"):
            await generator.load(WeightUpdate(1, other(tiny, 1)))


async def test_a_worker_that_dies_ends_the_generator_with_one_error_in_time(grouped: Any, tiny: Any) -> None:
    async with grouped() as (generator, answers):
        await generator.load(WeightUpdate(1, other(tiny, 1)))
        answers.workers[0].kill()
        answers.workers[0].wait(timeout=60)
        with pytest.raises(GenerationError, match="weight update 2: SGLang failed in the middle of it"):
            await generator.load(WeightUpdate(2, other(tiny, 2)))
        with pytest.raises(GenerationError, match="failed in the middle"):
            await generator.generate(request(np.array([20])))


def test_nobody_who_comes_to_a_group_is_an_error_in_time() -> None:
    group = EngineGroup(torch.device("cpu"), 0.2)
    with pytest.raises(GenerationError, match="1 processes of the server did not join in 0 s"):
        group.join(2)


def test_the_port_of_a_group_is_on_loopback() -> None:
    group = EngineGroup(torch.device("cpu"), 1.0)
    lines = Path("/proc/net/tcp").read_text().splitlines() + Path("/proc/net/tcp6").read_text().splitlines()
    bound = [line.split()[1] for line in lines if line.split()[1].endswith(f":{group.port:04X}") and line.split()[3] == "0A"]
    assert bound == [f"0100007F:{group.port:04X}"]


def test_a_server_on_another_machine_needs_an_address_to_come_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_HOST", raising=False)
    far = build("quickstart", [*GROUPED, "--roles.engine.url", "http://10.0.0.7:30000"])
    with pytest.raises(SpecError, match=r"http://10.0.0.7:30000 is another machine.*set PENSTOCK_HOST"):
        check_engine(far)
    monkeypatch.setenv("PENSTOCK_HOST", "10.0.0.6")
    check_engine(far)
    assert weights_way(far).endswith("by shared memory, then by a process group to the server's processes")
