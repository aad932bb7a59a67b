"""A reward worker: scores groups as they come."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.spans import Spans
from penstock.core.types import Group
from penstock.models.files import load_text
from penstock.runtime.bootstrap import Bootstrap
from penstock.runtime.build import Models, StageRewards
from penstock.runtime.folder import RunFolder
from penstock.runtime.remote import write_column
from penstock.stream.enrichment import REWARD, Change, changes
from penstock.train.device import set_up


async def run(bootstrap: Bootstrap) -> None:
    """Score groups, for ever."""
    made, stage, folder = bootstrap.run, bootstrap.online, RunFolder(bootstrap.folder)
    device = set_up(made.device, bootstrap.threads)
    text = load_text(str(bootstrap.stage_start(stage.name)))
    models = Models(lambda earlier: folder.stage_model(made, earlier), device, made.seed, folder.blobs)
    models.compute = stage.learner.dtype
    rewards = StageRewards(stage.rewards, models, text, bootstrap.base)
    rewards.spans = Spans(folder.spans / f"{bootstrap.name}.jsonl", bootstrap.name)

    async def scored(group: Group) -> Sequence[Change]:
        return changes(group, await rewards(group))

    try:
        await write_column(bootstrap, REWARD.name, scored)
    finally:
        await rewards.close()
