"""What users of a product click is never all that a run learns from.

A policy that is rewarded by thumbs alone learns to please whoever clicks. So wherever product signals are learned from, people
who were asked or answers that were checked must have a say too: in the same reward, in a stage that this one starts from or
that goes on from it, or at least in the evaluation by which its weights are judged.
"""

from __future__ import annotations

from penstock.config.ask import Ask
from penstock.config.run import DataSpec, Offline, Online, Run, Stage, models_behind
from penstock.core.errors import SpecError

SIGNALS, OTHER = "signals", "other"
"""Kinds of feedback: what users did unasked; and votes, labels and rewards of any other origin."""


def require_more_than_signals(run: Run) -> None:
    """Refuse a run in which product signals are the only feedback of a stage and of all that comes of it.

    Raises:
        SpecError: names the stage and the fix.
    """
    learned: dict[str, set[str]] = {}
    for stage in run.stages:
        learned[stage.name] = own_kinds(stage, learned) | learned.get(stage.model.path.removeprefix("@"), set())
    for stage in run.stages:
        own = own_kinds(stage, learned)
        if SIGNALS not in own:
            continue
        if isinstance(stage, Online) and OTHER not in own:
            raise SpecError(
                f"{stage.name}: all its rewards were learned from product signals, and a policy learns to please whoever clicks"
                "; add a reward that was learned from votes, or that checks answers"
            )
        if isinstance(stage, Offline) and type(stage.algorithm).__name__ == "SFT":
            raise SpecError(f'{stage.name}: SFT would imitate what users disliked too; use KTO, or form="product_corrections"')
        if OTHER not in learned[stage.name] and not judged_by_others(stage) and not mended(stage, run, learned):
            raise SpecError(
                f"{stage.name}: product signals are all that it learns from; start from or go on with a stage that learns from "
                "votes or checked answers, or give it an evaluation on rows that people were asked about"
            )


def of_signals(data: DataSpec) -> bool:
    """Whether the labels of a source are product signals."""
    return data.source.startswith("feedback:") and data.options.get("form") == "product"


def own_kinds(stage: Stage, learned: dict[str, set[str]]) -> set[str]:
    """Kinds of feedback that a stage itself adds. Demonstrations are none: they say what to write, not what is good."""
    if isinstance(stage, Ask):
        return {OTHER} if stage.against is not None else set()  # votes decide whether the weights go on
    if isinstance(stage, Offline):
        if of_signals(stage.data):
            return {SIGNALS}
        return set() if type(stage.algorithm).__name__ == "SFT" else {OTHER}
    kinds: set[str] = set()
    for reward in stage.rewards:
        for name in models_behind(reward) if reward.weight else ():
            kinds |= learned.get(name.removeprefix("@"), {OTHER}) if name.startswith("@") else {OTHER}
        if reward.weight and not models_behind(reward):
            kinds.add(OTHER)
    return kinds


def judged_by_others(stage: Stage) -> bool:
    """Whether held-out rows of another origin judge an offline stage's weights."""
    return isinstance(stage, Offline) and stage.evaluation is not None and not of_signals(stage.evaluation.data)


def mended(stage: Stage, run: Run, learned: dict[str, set[str]]) -> bool:
    """Whether a later stage takes this one's model, as its start or as one of its rewards, and learns from others too."""
    heirs = {stage.name}
    for later in run.stages:
        taken = {later.model.path.removeprefix("@")}
        if isinstance(later, Online):
            taken |= {name.removeprefix("@") for reward in later.rewards for name in models_behind(reward)}
        if taken & heirs and later.name not in heirs:
            heirs.add(later.name)
            if OTHER in own_kinds(later, learned):
                return True
    return False
