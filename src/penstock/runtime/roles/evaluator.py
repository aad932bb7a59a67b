"""The evaluator: measures the versions that the learner asks for, while training goes on."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from penstock.core.errors import Superseded
from penstock.core.spans import Spans
from penstock.engine.encoder_decoder import embedded_generator
from penstock.envs.making import environments
from penstock.loops.rollout import Rollout
from penstock.models.files import load_model
from penstock.runtime.bootstrap import Bootstrap
from penstock.runtime.build import Models, StageRewards, reading, seed_of
from penstock.runtime.folder import RunFolder
from penstock.runtime.local import alongside
from penstock.runtime.measuring import measured
from penstock.runtime.remote import joined
from penstock.runtime.supervise import evaluation_folder
from penstock.train.device import set_up
from penstock.weights.channels import channel

SHOWN = 8
"""Groups of an evaluation that the learner is given to look at."""


async def run(bootstrap: Bootstrap) -> None:
    """Measure the versions that the learner asks for, on the held-out prompts of the stage."""

    run, stage = bootstrap.run, bootstrap.online
    folder, name, base = RunFolder(bootstrap.folder), bootstrap.name, bootstrap.base
    device = set_up(run.device, bootstrap.threads)
    model = load_model(str(bootstrap.stage_start(stage.name)), dtype=stage.learner.dtype, media=stage.model.media)
    reading(model.to(device), stage.model.media, folder.blobs)
    models = Models(lambda earlier: folder.stage_model(run, earlier), device, run.seed, folder.blobs)
    models.compute = stage.learner.dtype
    rewards = StageRewards(stage.rewards, models, model.text, base)
    sampling = replace(stage.sampling, seed=seed_of(run.seed, stage.name))
    engine = embedded_generator(model, max_running=stage.max_running, cache_gb=run.roles.engine.cache_of_ours(), version=-1)
    roll = Rollout(engine, environments(model.text, stage.environment, base), rewards, sampling, stage.samples)
    measure, closing = measured(stage.evaluation, roll, rewards, models, model, base)
    assert measure is not None
    subscriber = channel(run.roles.channel).subscriber(evaluation_folder(bootstrap.weights), name)
    spans = Spans(folder.spans / f"{name}.jsonl", name)

    def counts() -> dict[str, float]:
        return {"evaluated_tokens": engine.stats().generated_tokens}

    async with joined(bootstrap, name, "evaluator", counts, stage.name) as hub:
        await hub.role.ready()

        async def work() -> None:
            number = 0
            while True:
                if (request := await hub.evaluations.next_evaluation(number)) is None:
                    continue
                number = request.number
                with spans.span("evaluate", step=request.step):
                    try:
                        update = await asyncio.to_thread(subscriber.open, request.manifest)
                    except Superseded:  # the learner that asked is gone, and its weights with it; its successor asks again
                        continue
                    engine.version = -1  # a learner that was started again may ask for an older version
                    await engine.load(update)
                    metrics, groups = await measure()
                await hub.evaluations.answer(number, metrics, list(groups[:SHOWN]))

        try:
            async with alongside(hub.until_lost()):
                await work()
        finally:
            for made in closing:
                await made.close()
