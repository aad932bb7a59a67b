"""What each process of a stage holds, item by item, on the device that computes and in the memory of the host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from penstock.algos.policy import PolicyOptimization
from penstock.config.optimizers import AdamW8bit
from penstock.config.parts import models_behind
from penstock.config.run import ModelSpec, Online, RewardSpec, Run
from penstock.config.strategies import FSDP2, DeepSpeed
from penstock.core.errors import ModelError
from penstock.models.presets import Shape, folder_of, numbers_in, shape_behind
from penstock.plan.memory import MOMENTS, NUMBER, cache, footprint, rank_footprint, reward_model, size_text
from penstock.plan.passes import number_bytes, scoring_bytes, step_bytes, training_bytes

Place = Literal["device", "host"]
Moment = Literal["loading", "training", "stepping", "scoring", "saving"]
"""When an item is there: what is held at one moment adds up, and the fullest moment is the peak."""

RUNNING: tuple[Moment, ...] = ("training", "stepping", "scoring", "saving")
ALWAYS: tuple[Moment, ...] = ("loading", *RUNNING)
BUFFERS = 3
"""Copies of the weights in shared memory (``weights/shared_memory.py``, which imports torch)."""
SHARD = 50e9
"""Bytes of a model's file at most, which a save from a GPU has in the host's memory at once."""


@dataclass(frozen=True)
class Item:
    """One thing in the memory of a process."""

    what: str
    bytes: float | None
    """None: not known here."""
    place: Place = "device"
    at: tuple[Moment, ...] = ALWAYS
    about: str = ""

    @property
    def said(self) -> str:
        """In words."""
        size = "not known here" if self.bytes is None else size_text(self.bytes)
        when = "" if len(self.at) > 1 else f", while {self.at[0]}"
        return f"{self.place:<8}{size:>14}{when}{f' ({self.about})' if self.about else ''}"


BASE = Item("Python and its packages", 0.5e9, "host", about="without CUDA's own")
"""Measured on a processor after the imports and a first step: 0.49 to 0.55 GB."""


@dataclass(frozen=True)
class Process:
    """One process of a stage, or several alike."""

    name: str
    items: tuple[Item, ...]

    def peak(self, *places: Place) -> float:
        """Bytes at the fullest moment, of what is known."""
        known = [item for item in (*self.items, BASE) if item.place in places and item.bytes is not None]
        return max(sum(item.bytes or 0.0 for item in known if moment in item.at) for moment in ALWAYS)

    def lines(self, on_gpu: bool) -> Iterator[tuple[str, str]]:
        """(what, value): the totals first, then each item that there is."""
        more = " and what is not known" if any(item.bytes is None for item in self.items) else ""
        apart = f"device {size_text(self.peak('device'))}, host {size_text(self.peak('host'))} at their peaks{more}"
        one = f"{size_text(self.peak('device', 'host'))} at its peak{more}; the processor is the device"
        yield f"memory: {self.name}", apart if on_gpu else one
        yield from ((f"  {item.what}", item.said) for item in (*self.items, BASE) if item.bytes != 0)


def on_gpu(run: Run) -> bool:
    """Whether a run would compute on a GPU if it began here."""
    return run.device == "cuda" or (run.device == "auto" and Path("/dev/nvidiactl").exists())


def known_shape(spec: ModelSpec, run: Run) -> Shape | None:
    """As :func:`shape_behind`; None too for a configuration with other fields than Llama's."""
    try:
        return shape_behind(spec, run)
    except ModelError:
        return None


def processes(stage: Any, run: Run) -> list[Process]:
    """The processes of a stage that trains a language model, and what each holds; empty where its size is not known."""
    shape, gpu = known_shape(stage.model, run), on_gpu(run)
    if shape is None:
        return []
    apart, roles = stage.uses_stream and run.runtime != "local", run.roles
    label = apart and roles.references > 0 and stage.algorithm.teacher is None
    scored = stage.rewards if isinstance(stage, Online) else ()
    held_out = stage.evaluation.rewards if stage.evaluation is not None else ()
    rewards, evaluated = (reward_items(stage, run, gpu, specs) for specs in (scored, (*scored, *held_out)))
    measured = stage.evaluation is not None  # the learner itself measures the first and the last weights
    learner = [*learner_items(stage, shape, gpu), *(evaluated if measured or not apart else ())]
    if not label:
        learner += reference_items(stage, run, shape, gpu)
    pool = cache(stage, shape, roles.engine.cache_of_ours(), gpu) if isinstance(stage, Online) else 0.0
    learner += [] if apart or not pool else [Item("cache", pool, at=RUNNING, about=f"of {stage.max_running:,} rows")]
    if pool and measured:
        learner.append(Item("cache of an evaluation", pool, at=("scoring",)))
    policy = NUMBER[stage.learner.dtype] * (shape.parameters + shape.tower)
    buffers = BUFFERS * policy if apart and roles.channel == "shared memory" else 0.0
    learner.append(Item("weights on their way", buffers, "host", RUNNING, "buffers of shared memory"))
    ranks = stage.strategy.ranks
    found = [Process(f"the learner{', rank 0' if ranks > 1 else ''}" if apart or ranks > 1 else "the process", tuple(learner))]
    if ranks > 1:
        found.append(Process(several(ranks - 1, "other rank"), tuple(rank_items(stage, shape, gpu))))
    if not apart:
        return found
    weights = Item("policy", policy), Item("an update on its way", policy, "host", RUNNING)
    generating = (*weights, Item("cache", pool, at=RUNNING, about=f"of {stage.max_running:,} rows"))
    found.append(Process(several(roles.generators, "generator"), generating))
    found.append(Process(several(roles.rewards, "reward worker"), tuple(rewards)))
    if label and stage.algorithm.reference:
        alone = tuple(reference_items(stage, run, shape, gpu, True))
        found.append(Process(several(roles.references, "reference"), alone))
    if roles.evaluator and stage.evaluation is not None:
        found.append(Process("the evaluator", (*generating, *evaluated)))
    return found


def several(count: int, name: str) -> str:
    """Processes of a kind."""
    return f"each of {count} {name}s" if count > 1 else f"the {name}"


def rank_items(stage: Any, shape: Shape, gpu: bool) -> list[Item]:
    """What every rank of a learner holds to train: its share, or all of it."""
    learner, strategy = stage.learner, stage.strategy
    own, eight = rank_footprint(shape, learner), isinstance(learner.optimizer, AdamW8bit)
    heads = stage.algorithm.heads
    warm = isinstance(stage, Online) and stage.sampling.temperature not in (0.0, 1.0)
    entropy = isinstance(stage.algorithm, PolicyOptimization) and stage.algorithm.entropy.on
    passed = training_bytes(shape, learner, warm=warm, entropy=entropy, scores="score" in heads, on_gpu=gpu)
    passed /= strategy.sequence_parallel if isinstance(strategy, FSDP2) else 1
    trained = int(own.gradients / 4)
    sharded = isinstance(strategy, FSDP2 | DeepSpeed)
    bits, offload = "8 bits" if eight else "float32", gpu and isinstance(strategy, FSDP2 | DeepSpeed) and strategy.offload
    place: Place = "host" if offload else "device"
    return [
        Item("weights to compute with", own.weights, at=("training",), about="gathered block by block") if sharded
        else Item("policy and critic" if learner.critic != "none" else "policy", own.weights),
        Item("float32 masters", own.masters, place, RUNNING),
        Item("moments", own.moments, place, RUNNING, f"both, in {bits}"),
        Item("gradients", own.gradients, place, ("training", "stepping")),
        Item("activations", passed, at=("training",), about=f"a micro-batch of {learner.token_budget:,} tokens"),
        Item("the 8-bit step", step_bytes(shape, eight, gpu, trained), at=("stepping",), about="of its largest tensor"),
        Item("media in the tower", None if shape.tower_learns else 0.0, at=("training",)),
    ]  # fmt: skip


def learner_items(stage: Any, shape: Shape, gpu: bool) -> list[Item]:
    """What the learner's process, rank 0, holds of its own model."""
    learner, own = stage.learner, footprint(shape, stage.learner)
    found, whole = rank_items(stage, shape, gpu), NUMBER["float32"] * shape.parameters
    sharded = isinstance(stage.strategy, FSDP2 | DeepSpeed)
    if sharded:
        found.append(Item("the whole model", own.weights, about="rank 0 generates, evaluates and saves from it"))
    state = own.gradients + MOMENTS[type(learner.optimizer)] * own.gradients / 4
    largest = 4.0 * max(shape.width * shape.hidden, shape.vocabulary * shape.width)
    found.append(Item("state while a save is written", largest if sharded else state, "host", RUNNING,
                      "one tensor" if sharded else "a copy of masters and moments"))  # fmt: skip
    found.append(Item("more while it is loaded", max(0.0, whole - own.weights), at=("loading",), about="as float32"))
    matrices = number_bytes(learner) * shape.layers * (shape.layer_parameters - 2.0 * shape.width)
    found.append(Item("adapters merged to be saved", matrices if learner.lora is not None else 0.0, at=("saving",)))
    found.append(Item("a model file being read", whole if gpu else 0.0, "host", ("loading",)))
    found.append(Item("a model file being written", min(SHARD, own.weights) if gpu else 0.0, "host", ("saving",)))
    return found


def reference_items(stage: Any, run: Run, shape: Shape, gpu: bool, alone: bool = False) -> list[Item]:
    """The reference of a stage, and a pass of it. ``alone``: in a process without the policy, whose tensors it would share."""
    if not stage.algorithm.reference:
        return []
    learner, named = stage.learner, stage.reference
    other = named is not None and (not named.path or named.path != stage.model.path)
    shape_of_it = known_shape(named, run) if other else shape
    if shape_of_it is None:
        return [Item("reference", None, about=f"{named.path} {MISSING}")]
    held, about = NUMBER[learner.dtype] * float(shape_of_it.parameters + shape_of_it.tower), ""
    if not alone and not other and (learner.lora is not None or learner.unfrozen_layers >= 0):
        held, about = footprint(shape, learner, reference=True).weights - footprint(shape, learner).weights, "else the policy's"
    return [
        Item("reference", held, about=about),
        Item("a pass of the reference", scoring_bytes(shape_of_it, learner, on_gpu=gpu), at=("scoring",)),
    ]


MISSING = "has no config.json with Llama's fields here, in a folder or the hub's cache; hf download NAME config.json brings one"


def reward_items(stage: Any, run: Run, gpu: bool, specs: Sequence[RewardSpec]) -> list[Item]:
    """The reward models of rewards, each by its own shape, and the largest pass of one."""
    found, passes, learner = list[Item](), [0.0], stage.learner
    for reward in specs:
        for name in models_behind(reward):
            shape = known_shape(ModelSpec(path=name), run)
            if shape is None:
                found.append(Item("reward model", None, about=f"{name} {MISSING}"))
                continue
            own = reward_model(shape, learner)
            found.append(Item("reward model", own, about=name))
            passes.append(scoring_bytes(shape, learner, logits=False, on_gpu=gpu))
        scheme, _, place = reward.function.partition(":")
        folder = folder_of(place) if scheme == "clip" else None
        if scheme == "clip":
            held = None if folder is None else 4.0 * numbers_in(folder)
            found.append(Item("CLIP", held, about=place if folder else f"{place} {MISSING}"))
    return [*found, Item("a pass of a reward model", max(passes), at=("scoring",))]
