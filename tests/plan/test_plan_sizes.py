"""What a stage will take, in numbers, by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.config.strategies import FSDP2
from penstock.models.presets import shape_behind
from penstock.plan.memory import footprint, moved, rank_footprint, stage_memory
from penstock.recipes.quickstart import quickstart


def planned() -> tuple[Any, Any]:
    """The last stage of a run, and the shape of its model."""
    run = quickstart()
    return run.stages[-1], shape_behind(run.stages[-1].model, run)


def test_a_stage_takes_what_stands_in_memory_and_what_its_batch_needs() -> None:
    stage, shape = planned()
    found = {what: count for what, count, _ in stage_memory(stage, shape)}
    own = footprint(shape, stage.learner)
    kept = stage.learner.token_budget * shape.layers * (34 * shape.width + 6 * shape.hidden)
    logits = min(stage.learner.token_budget * shape.vocabulary, 1 << 24) * 4 * 3
    held = {"weights": own.weights + own.masters, "optimizer": own.gradients + own.moments, "reference": 0.0}
    held["activations"] = kept + logits
    held["cache"] = stage.max_running * stage.sampling.max_new_tokens * shape.cache_bytes_per_token
    assert found == held | {"total": sum(held.values())}


def test_a_cache_takes_no_more_than_the_engine_may() -> None:
    stage, shape = planned()
    found = [stage_memory(stage, shape, gb) for gb in (0.0, 0.001, 99.0)]
    held = [{what: count for what, count, _ in taken}["cache"] for taken in found]
    assert held == [held[0], 1e6, held[0]]
    assert held[0] > 1e6


def test_a_step_moves_weights_to_every_generator_and_answers_three_times() -> None:
    run = replace(quickstart(), runtime="procs")
    run = replace(run, roles=replace(run.roles, generators=2, references=0))
    stage = run.stages[-1]
    (_, weights, _), (_, answers, _) = moved(stage, run, 100.0)
    assert weights == 200.0
    assert answers == 3 * 13 * stage.batch * stage.samples * stage.sampling.max_new_tokens


def test_ranks_of_a_sequence_share_its_activations() -> None:
    stage, shape = planned()
    spread = replace(stage, learner=replace(stage.learner, strategy=FSDP2(ranks=2, sequence_parallel=2)))
    found = {what: count for what, count, _ in stage_memory(spread, shape)}
    assert found["each of 2 ranks"] == rank_footprint(shape, spread.learner).total + found["activations"] / 2
    assert found["rank 0 as well"] == footprint(shape, stage.learner).weights, "rank 0 gathers the whole model beside its share"
