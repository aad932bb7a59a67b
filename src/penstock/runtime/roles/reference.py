"""A reference worker: computes the log-probs of the reference model for groups as they come."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from penstock.core.spans import Spans
from penstock.core.types import Group
from penstock.loops.columns import column_changes
from penstock.runtime.bootstrap import Bootstrap
from penstock.runtime.build import Models, corpus_of
from penstock.runtime.folder import RunFolder
from penstock.runtime.remote import write_column
from penstock.stream.enrichment import REFERENCE, Change
from penstock.train.device import set_up


async def run(bootstrap: Bootstrap) -> None:
    """Score groups with the reference model alone, for ever.

    One group a pass and one pass at a time: log-probs then depend on nothing but the group, so that a replay finds the same,
    and a pass uses all threads that there are.
    """
    made, stage, folder = bootstrap.run, bootstrap.online, RunFolder(bootstrap.folder)
    device = set_up(made.device, bootstrap.threads)
    models = Models(lambda earlier: folder.stage_model(made, earlier), device, made.seed, folder.blobs)
    scorer = models.reference_alone(stage, corpus_of(stage.data, bootstrap.base))
    spans = Spans(folder.spans / f"{bootstrap.name}.jsonl", bootstrap.name)

    async def scored(group: Group) -> Sequence[Change]:
        with spans.span("label"):
            return await asyncio.to_thread(column_changes, "reference", scorer, group)

    await write_column(bootstrap, REFERENCE.name, scored, groups=1)
