"""What users of a product click is never all that a run learns from.

A policy that is rewarded by thumbs alone learns to please those who click. So wherever product signals are learned from, people
who were asked or answers that were checked must have a say too: in the same reward, in a stage that this one starts from or
that goes on from it, or at least in the evaluation by which its weights are judged.
"""

from __future__ import annotations

from penstock.config.run import Run
from penstock.config.stage import OTHER, SIGNALS, Stage
from penstock.core.errors import SpecError


def require_more_than_signals(run: Run) -> None:
    """Refuse a run in which product signals are the only feedback of a stage and of all that comes of it.

    Raises:
        SpecError: names the stage and the fix.
    """
    learned: dict[str, set[str]] = {}
    for stage in run.stages:
        learned[stage.name] = stage.feedback(learned) | learned.get(stage.model.path.removeprefix("@"), set())
    for stage in run.stages:
        own = stage.feedback(learned)
        if SIGNALS not in own:
            continue
        if stage.uses_stream and OTHER not in own:
            raise SpecError(
                f"{stage.name}: all its rewards were learned from product signals, and a policy learns to please its users"
                "; add a reward that was learned from votes, or that checks answers"
            )
        if stage.imitates:
            raise SpecError(f'{stage.name}: SFT would imitate what users disliked too; use KTO, or form="product_corrections"')
        if OTHER not in learned[stage.name] and not judged_by_others(stage) and not mended(stage, run, learned):
            raise SpecError(
                f"{stage.name}: product signals are all that it learns from; start from or go on with a stage that learns from "
                "votes or checked answers, or give it an evaluation on rows that people were asked about"
            )


def judged_by_others(stage: Stage) -> bool:
    """Whether held-out rows of another origin judge an offline stage's weights."""
    return stage.pinned and not stage.uses_stream and stage.evaluation is not None and not stage.evaluation.data.of_signals


def mended(stage: Stage, run: Run, learned: dict[str, set[str]]) -> bool:
    """Whether a later stage takes this one's model, as its start or as one of its rewards, and learns from others too."""
    heirs = {stage.name}
    for later in run.stages:
        taken = {later.model.path.removeprefix("@")}
        taken |= {name.removeprefix("@") for name in later.reward_models()}
        if taken & heirs and later.name not in heirs:
            heirs.add(later.name)
            if OTHER in later.feedback(learned):
                return True
    return False
