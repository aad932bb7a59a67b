"""Breakers under injected faults: ``python benchmarks/breakers.py WHAT [--runs 20] [--out FILE]``.

Real runs of small recipes, each fault put into the running system from a step on, as it would come: a learning rate 30 times
too high for some steps, rewards 1,000 times too large or turned round, one weight update that arrives as noise, a generator
that never takes weights again, prompts that come double, a loss that is not finite, a reward that pays for length.

``trips``: how many of the runs trip the breaker that the fault is for, and after how many steps.
``healthy``: steps without a fault of five recipes and of the tasks of ``healthy_tasks.py``, and what tripped in them.
``recovery``: the end of runs with a burst of a fault, with breakers and without, next to healthy ones.
``picture``: of what ``recovery --out FILE`` wrote, how a reward that pays for length is exploited (needs matplotlib).
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from healthy_tasks import TASKS

from penstock.config.keeping import CheckpointSpec
from penstock.config.run import ModelSpec, Offline, Run
from penstock.control.environments import Block
from penstock.core.errors import PenstockError
from penstock.core.events import read_events
from penstock.data.sampler import Sampler
from penstock.engine.generator import EmbeddedGenerator
from penstock.observe import sentinels
from penstock.recipes.cartpole import cartpole
from penstock.recipes.digits import digits
from penstock.recipes.quickstart import quickstart
from penstock.recipes.randomwalks import randomwalks
from penstock.runtime import launch
from penstock.runtime.build import StageRewards
from penstock.runtime.stages.online import OnlineRuntime
from penstock.train import learner
from penstock.weights.alias import AliasChannel

AT = 30
"""The step from which a fault is there."""
HACKED = 10
"""The step from which the reward pays for length: while the policy still varies enough to find that out."""
BURST = 8
"""Steps of a fault that passes."""
STEP = {"now": 0}
TRAINED: dict[str, Any] = {}
"""What gives the rewards that are trained on."""


def during(begin: int, end: int) -> bool:
    """Whether the batch under way is one of those with the fault."""
    return begin <= STEP["now"] < end


@contextlib.contextmanager
def patched(owner: Any, name: str, made: Callable[[Any], Any]) -> Iterator[None]:
    """``owner.name`` is what ``made`` makes of it."""
    known = getattr(owner, name)
    setattr(owner, name, made(known))
    try:
        yield
    finally:
        setattr(owner, name, known)


def counted(known: Any) -> Any:
    """Notes which batch is under way."""

    def watch(self: Any, learner_: Any, index: int, *more: Any, **named: Any) -> Any:
        STEP["now"] = index
        return known(self, learner_, index, *more, **named)

    return watch


def noted(known: Any) -> Any:
    """Notes what gives the rewards that are trained on."""

    def begin(self: Any, parts: Any, *more: Any) -> None:
        TRAINED["rewards"] = parts.rewards
        known(self, parts, *more)

    return begin


def rewards(change: Callable[[Any], float], begin: int, end: int) -> Any:
    """Changes what a batch's samples are given; those of an evaluation with rewards of its own get what they should."""

    def made(known: Any) -> Any:
        async def reward(self: Any, group: Any) -> Any:
            scored = await known(self, group)
            if self is not TRAINED["rewards"] or not during(begin - 1, end - 1):  # of an evaluation; it is scored a step before
                return scored
            return replace(scored, samples=tuple(s.scored(change(s)) if s.valid else s for s in scored.samples))

        return reward

    return patched(StageRewards, "__call__", made)


def paid(change: Callable[[Any], Any], begin: int, end: int) -> Any:
    """Changes what environments pay."""

    def made(known: Any) -> Any:
        def stepped(self: Any, found: Any, reward_N: Any, *more: Any) -> Any:
            return known(self, found, change(reward_N) if during(begin - 1, end - 1) else reward_N, *more)

        return stepped

    return patched(Block, "_stepped", made)


def paid_for_length(sample: Any) -> float:
    """Half of what is right, and a tenth a token: walks grow long, and what is right is lost."""
    return 0.5 * sample.reward + float(sample.action_T.sum()) / 10


def rate(begin: int, end: int) -> Any:
    def made(known: Any) -> Any:
        return lambda spec, step, total: known(spec, step, total) * (30.0 if during(begin, end) else 1.0)

    return patched(learner, "rate_at", made)


def not_finite(begin: int, end: int) -> Any:
    def made(known: Any) -> Any:
        def flush(self: Any) -> Any:
            if during(begin, end):
                self.noted = [(value * float("inf"), metrics) for value, metrics in self.noted]
            return known(self)

        return flush

    return patched(learner.DeviceLearner, "flush", made)


def weights(begin: int, end: int, noise: float) -> Any:
    """From version ``begin`` to before ``end`` the generator holds a copy of the weights of ``begin``, with ``noise`` on it."""

    def made(known: Any) -> Any:
        async def publish(self: Any, version: int) -> None:
            for generator in self.generators:
                assert isinstance(generator, EmbeddedGenerator)
                if not hasattr(generator, "own"):
                    generator.own = generator.model  # type: ignore[attr-defined]
                if version == begin:
                    generator.model = copy.deepcopy(generator.own)  # type: ignore[attr-defined]
                    with torch.no_grad():
                        for parameter in generator.model.network.parameters():
                            parameter.add_(torch.randn_like(parameter) * parameter.std().nan_to_num(0.0) * noise)
                elif version == end:
                    generator.model = generator.own  # type: ignore[attr-defined]
            await known(self, version)

        return publish

    return patched(AliasChannel, "publish", made)


def doubled(begin: int, end: int) -> Any:
    def made(known: Any) -> Any:
        def index(self: Any, ordinal: int) -> int:
            return int(known(self, ordinal - ordinal % 4)) if during(begin - 1, end - 1) else int(known(self, ordinal))

        return index

    return patched(Sampler, "index", made)


ALWAYS = 10**9
FAULTS: dict[str, tuple[str, int, Callable[[], Any]]] = {
    "rate x 30": (
        "update size, reward fall, held-out fall, entropy jump, entropy collapse, gradient norm, reference KL, step KL",
        2,
        lambda: rate(AT, ALWAYS),
    ),
    "rewards x 1,000": ("reward range", 1, lambda: rewards(lambda s: 1000 * s.reward, AT, ALWAYS)),
    "rewards turned round": ("reward fall", 8, lambda: rewards(lambda s: 1 - s.reward, AT, ALWAYS)),
    "rewards constant": ("constant reward", 5, lambda: rewards(lambda s: 0.5, AT, ALWAYS)),
    "one update is noise": ("log-prob gap", 2, lambda: weights(AT, AT + 1, 0.3)),
    "generator is stuck": ("log-prob gap", 12, lambda: weights(AT, ALWAYS, 0.0)),
    "prompts come double": ("repeated prompts", 4, lambda: doubled(AT, ALWAYS)),
    "loss not finite": ("non-finite", 1, lambda: not_finite(AT, ALWAYS)),
    "reward pays for length": ("gold", 75, lambda: rewards(paid_for_length, HACKED, ALWAYS)),
}
"""What breakers answer to it, within how many steps, and how it is put in."""

MOVED = "update size, gradient norm, step KL, loss jump, entropy jump, reward fall"
PICTURES = {name: FAULTS[name] for name in FAULTS if name not in ("prompts come double", "reward pays for length")}
"""Those of a denoiser: ten prompts come again in every batch, and what it makes has no length."""
CONTROL: dict[str, tuple[str, int, Callable[[], Any]]] = {
    "rate x 30": (MOVED, 2, lambda: rate(AT, ALWAYS)),
    "rewards x 1,000": (MOVED, 2, lambda: paid(lambda reward_N: reward_N * 1000, AT, ALWAYS)),
    "an environment breaks": ("non-finite", 1, lambda: paid(lambda reward_N: reward_N * float("nan"), AT, ALWAYS)),
    "loss not finite": ("non-finite", 1, lambda: not_finite(AT, ALWAYS)),
}
"""Those of control: one process decides and learns by the same weights, and rewards have no range that they would keep."""
WORLDS = {"language": FAULTS, "pictures": PICTURES, "control": CONTROL}
LANGUAGE = ("randomwalks-grpo", "quickstart-grpo", "randomwalks-ppo", "randomwalks-rloo")


def trained(folder: Path) -> dict[str, Path]:
    """Models to start from, trained once: after imitation, after 60 steps of GRPO, and a denoiser of digits."""
    quick, drawn = quickstart(steps=60), digits()
    shorter = tuple(replace(stage, evaluation=None) for stage in quick.stages)
    runs = {
        "randomwalks": randomwalks("sft"),
        "quickstart": replace(quick, stages=shorter, headline="done"),
        "digits": replace(drawn, stages=drawn.stages[:1], headline="done"),
    }
    for name, run in runs.items():
        if not (folder / name / "summary.json").exists():
            launch(replace(run, name=name, device="cpu", threads=1), folder / name)
    return {name: folder / name / "model" for name in runs}


def recipe(name: str, seed: int, steps: int, every: int, models: dict[str, Path], mode: str) -> Run:
    """A run of one stage from a trained model, or of control from an untrained one."""
    task, _, algorithm = name.partition("-")
    made = {"quickstart": quickstart, "digits": digits, "cartpole": cartpole}.get(task, randomwalks)
    run = made(algorithm, seed) if task in ("randomwalks", "digits") else made(seed)  # type: ignore[operator]
    stage: Any = replace(run.stages[-1], steps=steps)
    if task in models:
        stage = replace(stage, model=ModelSpec(path=str(models[task])))
    if task == "quickstart":
        learner_ = replace(stage.learner, learning_rate=1e-4)  # at 3e-4 such small batches do harm to a trained model
        stage = replace(stage, batch=16, samples=8, learner=learner_)
    if task in ("digits", "cartpole"):
        stage = replace(stage, evaluation=None)
    elif not isinstance(stage, Offline) or stage.evaluation is not None:
        stage = replace(stage, evaluation=replace(stage.evaluation, every=every))
    return replace(
        run, stages=(stage,), device="cpu", threads=1, headline="", sentinels=mode, checkpoint=CheckpointSpec(every=10, keep=3)
    )


def carried_out(run: Run, fault: Callable[[], Any]) -> tuple[list[Any], str]:
    """The events of a run with a fault, and the error that ended it, if one did."""
    STEP["now"], error = 0, ""
    folder = Path(tempfile.mkdtemp())
    try:
        with patched(sentinels.Sentinels, "watch", counted), patched(OnlineRuntime, "__init__", noted), fault():
            try:
                launch(run, folder / "run")
            except PenstockError as ended:
                error = str(ended)
        return list(read_events(folder / "run" / "events.jsonl")), error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def alarms_of(events: list[Any]) -> list[tuple[str, int, str]]:
    """Name, step and action of what tripped."""
    known = [event for event in events if event["kind"] == "sentinel" and event["state"] == "tripped"]
    return [(event["sentinel"], event["step"], event.get("action", "")) for event in known]


def steps_of(events: list[Any]) -> int:
    return max((event["step"] for event in events if event["kind"] == "metrics"), default=0)


def trips(options: argparse.Namespace, models: dict[str, Path]) -> Iterator[dict[str, Any]]:
    for world, faults in WORLDS.items():
        for fault, (names, within, put_in) in faults.items():
            if options.only and fault not in options.only.split(";"):
                continue
            first = []
            for seed in range(options.runs):
                long = fault == "reward pays for length"
                kinds = (
                    ("randomwalks-grpo",)
                    if long
                    else {"language": LANGUAGE, "pictures": ("digits-flow",)}.get(world, ("cartpole",))
                )
                kind, every, begin = kinds[seed % len(kinds)], 5 if long else 0, HACKED if long else AT
                events, error = carried_out(recipe(kind, seed, AT + within + 2, every, models, "on"), put_in)
                before = sorted({name for name, step, _ in alarms_of(events) if step <= begin})
                hits = [
                    (step - begin, name, action) for name, step, action in alarms_of(events) if name in names and step > begin
                ]
                first.append(min(hits, default=(ALWAYS, "none", "")))
                yield {"world": world, "fault": fault, "recipe": kind, "seed": seed, "after": first[-1], "before": before,
                       "ended": error[:200], "alarms": alarms_of(events)}  # fmt: skip
            ordered = sorted(after for after, _, _ in first)
            yield {"world": world, "fault": fault, "runs": len(first), "tripped": sum(after <= within for after in ordered),
                   "within": within, "median": statistics.median(ordered), "last": ordered[-1]}  # fmt: skip


HEALTHY = ("randomwalks-grpo", "randomwalks-ppo", "randomwalks-rloo", "quickstart-grpo", "randomwalks-dpo")


def healthy(options: argparse.Namespace, models: dict[str, Path]) -> Iterator[dict[str, Any]]:
    """Recipes from trained models, and tasks from untrained ones; what was left out, undone or ended in them."""
    made = {kind: lambda name, seed: recipe(name, 1000 + seed, 100, 20, models, "on") for kind in HEALTHY} | TASKS
    for kind, run in made.items():
        if options.only and kind not in options.only.split(";"):
            continue
        for seed in range(options.runs):
            events, error = carried_out(run(kind, seed), contextlib.nullcontext)
            alarms = alarms_of(events)
            curve = [event["values"]["reward/mean"] for event in events
                     if event["kind"] == "metrics" and "reward/mean" in event["values"]]  # fmt: skip
            left_out = len({step for _, step, action in alarms if action == "skip"})
            yield {"task": kind, "seed": seed, "steps": steps_of(events), "left_out": left_out,
                   "undone": sum("roll back" in action for _, _, action in alarms), "ended": error[:200],
                   "end": statistics.fmean(curve[-10:]) if curve else None, "alarms": alarms}  # fmt: skip


def recovery(options: argparse.Namespace, models: dict[str, Path]) -> Iterator[dict[str, Any]]:
    burst = {
        "none": contextlib.nullcontext,
        "rate x 30": lambda: rate(AT, AT + BURST),
        "rewards turned round": lambda: rewards(lambda s: 1 - s.reward, AT, AT + BURST),
        "one update is noise": lambda: weights(AT, AT + 1, 0.3),
        "loss not finite": lambda: not_finite(AT, AT + 2),
        "reward pays for length": lambda: rewards(paid_for_length, HACKED, ALWAYS),
    }
    for seed in range(options.runs):
        for fault, put_in in burst.items():
            for mode in ("on", "warn"):
                if (fault == "none" and mode == "warn") or (options.only and fault not in options.only.split(";")):
                    continue
                steps = 150 if fault == "reward pays for length" else 100
                events, error = carried_out(recipe("randomwalks-grpo", seed, steps, 5, models, mode), put_in)
                curve = [(event["step"], event["values"]["evaluation/reward"]) for event in events
                         if event["kind"] == "metrics" and "evaluation/reward" in event["values"]]  # fmt: skip
                proxy = [(event["step"], event["values"]["reward/mean"]) for event in events
                         if event["kind"] == "metrics" and "reward/mean" in event["values"]]  # fmt: skip
                yield {"fault": fault, "breakers": mode, "seed": seed, "end": curve[-1][1] if curve else None, "curve": curve,
                       "trained": proxy, "alarms": alarms_of(events), "ended": error[:200]}  # fmt: skip


def picture(records: Path, image: Path) -> None:
    """Held-out and trained reward of all seeds over steps, with and without breakers."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    runs = [json.loads(line) for line in records.read_text(encoding="utf-8").splitlines()]
    shown = [("none", "on", "the right reward", "tab:green"), ("reward pays for length", "warn", "pays for length", "tab:red"),
             ("reward pays for length", "on", "pays for length, with breakers", "tab:blue")]  # fmt: skip
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4), constrained_layout=True)
    for axis, name, title in (
        (axes[0], "curve", "held-out: what is wanted"),
        (axes[1], "trained", "the reward that is trained on"),
    ):
        for fault, mode, label, colour in shown:
            curves = [run[name] for run in runs if (run["fault"], run["breakers"]) == (fault, mode)]
            for curve in curves:
                axis.plot(*zip(*curve, strict=True), color=colour, alpha=0.25, linewidth=1)
            steps = sorted({step for curve in curves for step, _ in curve})
            # a run that has ended has the weights that it ended with
            held = [
                [max((point for point in curve if point[0] <= step), default=curve[0])[1] for step in steps] for curve in curves
            ]
            middle = [statistics.median(values) for values in zip(*held, strict=True)]
            axis.plot(steps, middle, color=colour, label=label, linewidth=2)
        axis.set(title=title, xlabel="step")
        axis.grid(alpha=0.3)
    axes[0].legend()
    figure.savefig(image, dpi=110)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("what", choices=("trips", "healthy", "recovery", "picture"))
    options.add_argument("--runs", type=int, default=20)
    options.add_argument("--only", default="", help="faults, joined by semicolons")
    options.add_argument("--models", default=str(Path(tempfile.gettempdir()) / "penstock-breakers"))
    options.add_argument("--out", default="")
    options.add_argument("--image", default="docs/images/breakers.png", help="of picture, made of the records in --out")
    given = options.parse_args()
    if given.what == "picture":
        return picture(Path(given.out), Path(given.image))
    torch.set_num_threads(1)
    models = trained(Path(given.models))
    for line in {"trips": trips, "healthy": healthy, "recovery": recovery}[given.what](given, models):
        text = json.dumps(line)
        print(text[:300], flush=True)
        if given.out:
            with open(given.out, "a", encoding="utf-8") as file:
                file.write(text + "\n")


if __name__ == "__main__":
    main()
