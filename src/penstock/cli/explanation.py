"""What a run would do here: derived sizes, memory and what runs where, before anything heavy starts."""

from __future__ import annotations

import os
from typing import Any

from penstock.config.engine_choice import sends_adapters, weights_way
from penstock.config.placing import placement_lines
from penstock.config.run import Online, Run
from penstock.models.presets import Shape, draws_pictures, shape_behind
from penstock.plan.advice import advice
from penstock.plan.memory import footprint, moved, size_text, trained_parameters
from penstock.plan.pictures import picture_process
from penstock.plan.processes import MISSING, on_gpu, processes
from penstock.runtime.check import check_shapes
from penstock.runtime.supervise import rules_of, threads_of

FLOAT_BYTES = 4.0
"""Of a number of an adapter, which are trained in float32."""


def explain(made: Run) -> list[str]:
    """Lines about a run."""
    threads = threads_of(made) if made.runtime != "local" else made.threads or os.cpu_count() or 1
    each = {"local": "", "procs": " for each process", "ray": " for the learner"}[made.runtime]
    check_shapes(made)
    stages = f"{len(made.stages)} stage{'s' if len(made.stages) > 1 else ''}"
    lines = [f"run {made.name}: {stages}, seed {made.seed}, device {made.device}, {threads} CPU threads{each}"]
    lines += placement(made)
    every = made.checkpoint.every
    when = f"every {every} steps and at the end of a stage" if every else "at the end of each stage"
    lines.append(f"  checkpoints {when}; kept: newest {made.checkpoint.keep}, the best, the last good one")
    for stage in made.stages:
        if stage.asks:
            lines += ["", f"stage {stage.name} (ask)", *(f"  {name:<24}{value}" for name, value in asking_facts(stage))]
            continue
        lines += ["", f"stage {stage.name} ({type(stage).__name__.lower()}, {type(stage.algorithm).__name__})"]
        lines += [f"  {name:<34}{value}" for name, value in stage.facts or facts(stage, made)]
        if stage.facts or draws_pictures(stage.model, made):
            continue
        lines += [f"  warning: {line}" for line in advice(stage, shape_behind(stage.model, made))]
    return lines


def placement(made: Run) -> list[str]:
    """Where the roles live."""
    if made.runtime == "local":
        strategies = [stage.strategy for stage in made.stages]
        ranks = max(strategy.ranks for strategy in strategies)
        if ranks == 1:
            return ["  runtime local: one process; the generator reads the learner's own parameters"]
        kinds = ", ".join(sorted({type(strategy).__name__ for strategy in strategies if strategy.ranks > 1}))
        return [f"  runtime local: one process and {ranks - 1} more that train with it ({kinds}); it generates itself"]
    if made.runtime == "ray":
        return placement_lines(made)
    roles, actors = made.roles, max(stage.actors for stage in made.stages)
    counts = {"generator": roles.generators, "reward worker": roles.rewards, "reference": roles.references}
    counts = {"actor": actors} if actors else counts | {"evaluator": int(roles.evaluator)}
    others = ", ".join(f"{count} {name}{'s' if count > 1 else ''}" for name, count in counts.items() if count)
    return [
        f"  runtime procs: a supervisor with the stream, and processes of this machine: a learner, {others}",
        *([] if actors else [f"  generators run {roles.engine.described()}"]),
        f"  weights go {weights_way(made)}; what the processes say goes to logs/ in the run's folder",
    ]


def asking_facts(stage: Any) -> list[tuple[str, str]]:
    """(what, value) of a stage that asks."""
    mix = ", ".join(f"{share:.0%} {strategy}" for strategy, share in stage.mix.items())
    who = ", ".join(f"{one.name} ({type(one).__name__.lower()})" for one in stage.annotators) or "people"
    found = [
        ("about", stage.model.path + (f" against {stage.against.path}" if stage.against else "")),
        ("samples", f"{stage.prompts} prompts × {stage.samples}"),
        ("questions", f"{stage.questions} pairs ({mix}), {stage.duels} duels, {stage.anchors} anchors"),
        ("votes", f"{stage.overlap} each = {stage.steps * stage.overlap:,} at most, by {who}"),
        ("store", stage.store),
    ]
    return found + ([("chosen by", stage.scorers)] if stage.scorers else [])


def facts(stage: Any, made: Run) -> list[tuple[str, str]]:
    """(what, value) of one stage."""
    if draws_pictures(stage.model, made):
        return picture_facts(stage) + list(picture_process(stage, made).lines(on_gpu(made)))
    sized = shape_behind(stage.model, made)
    which = f"{stage.model.path or 'preset ' + stage.model.preset}, {_parameters(sized)}"
    found = [("model", which), ("data", stage.data.source)]
    if not stage.uses_stream:
        found.append(
            ("optimizer steps", f"{stage.steps}, {stage.batch} examples or pairs each = {stage.steps * stage.batch:,}")
        )
    else:
        found += online_facts(stage)
    learner = stage.learner
    if sized is not None and (learner.lora is not None or learner.unfrozen_layers >= 0):
        found.append(("trained", f"{trained_parameters(sized, learner) / 1e6:.2f}M of the policy's parameters"))
    found.append(("learning rate", f"{learner.learning_rate:g}, {learner.schedule}, warm-up {learner.warmup}"))
    found.append(("micro-batch", f"at most {learner.token_budget:,} packed tokens, {learner.dtype}"))
    if sized is not None:
        if made.runtime != "local" and stage.uses_stream:
            weights = footprint(sized, learner).weights
            sent = FLOAT_BYTES * trained_parameters(sized, learner) if sends_adapters(made, stage) else weights
            found += [("moved a step", f"{what} {size_text(count)} {way}") for what, count, way in moved(stage, made, sent)]
    else:
        found.append(("memory", f"not known: {stage.model.path} {MISSING}"))
    return found + [line for process in processes(stage, made) for line in process.lines(on_gpu(made))]


def picture_facts(stage: Any) -> list[tuple[str, str]]:
    """(what, value) of a stage that trains a denoiser."""
    learner, model = stage.learner, stage.model
    new = f"a denoiser from scratch, preset {model.preset}, of pictures {list(model.denoiser.shape)}" if model.denoiser else ""
    found = [("model", new or model.path), ("data", stage.data.source)]
    if stage.uses_stream:
        sizes = dict(online_facts(stage))
        count, how = stage.steps * stage.batch * stage.samples, stage.denoising
        steps = f"{how.steps} transitions each ({how.kernel})" if how else "in as many transitions as its folder says"
        sizes["generation"] = f"{stage.max_running} pictures at once, {steps}; {count:,} pictures in the whole stage"
        found += sizes.items()
    else:
        found.append(("optimizer steps", f"{stage.steps}, {stage.batch} pictures each = {stage.steps * stage.batch:,}"))
    rate = f"{learner.learning_rate:g}, {learner.schedule}, warm-up {learner.warmup}"
    return [*found, ("learning rate", rate), ("micro-batch", f"at most {learner.token_budget:,} transitions, {learner.dtype}")]


def online_facts(stage: Online) -> list[tuple[str, str]]:
    """Sizes that follow from prompts, samples and epochs."""
    sequences = stage.batch * stage.samples
    updates = stage.epochs * stage.minibatches
    generated = stage.steps * sequences * stage.sampling.max_new_tokens
    at_once, ahead = min(stage.max_running, sequences), rules_of(stage).slots
    return [
        ("a training batch", f"{stage.batch} prompts × {stage.samples} samples = {sequences} sequences"),
        ("optimizer steps", f"{stage.steps} batches × {updates} = {stage.steps * updates}"),
        ("generation", f"{at_once} sequences at once; at most {generated:,} tokens in the whole stage"),
        ("staleness", f"max_lag {stage.max_lag}: {ahead} groups admitted ahead at most, on_stale {stage.on_stale}"),
        ("rewards", ", ".join(f"{reward.weight:g} × {reward.function}" for reward in stage.rewards)),
    ]


def _parameters(sized: Shape | None) -> str:
    if sized is None:
        return "size known when it is loaded"
    return f"{sized.parameters / 1e6:.1f}M parameters{f', {sized.tower / 1e6:.2f}M in its tower' if sized.tower else ''}"
