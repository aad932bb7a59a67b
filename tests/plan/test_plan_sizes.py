"""What a stage will take, in numbers, by hand."""

from __future__ import annotations

from dataclasses import replace

from penstock.config.strategies import FSDP2
from penstock.models.presets import shape_behind
from penstock.plan.memory import footprint, stage_memory
from penstock.plan.traffic import moved
from penstock.recipes.quickstart import quickstart


def test_a_stage_takes_what_stands_in_memory_and_what_its_batch_needs() -> None:
    run = quickstart()
    stage = run.stages[-1]
    shape = shape_behind(stage.model, run)
    assert shape is not None
    found = stage_memory(stage, shape)
    kept = stage.learner.token_budget * shape.layers * (34 * shape.width + 6 * shape.hidden)
    logits = min(stage.learner.token_budget * shape.vocabulary, 1 << 24) * 4 * 3
    assert found.own == footprint(shape, stage.learner)
    assert found.activations == kept + logits
    assert found.cache == stage.max_running * stage.sampling.max_new_tokens * shape.cache_bytes_per_token
    assert found.total == found.own.total + found.reference + found.activations + found.cache
    assert found.ranks is None


def test_a_step_moves_weights_to_every_generator_and_answers_three_times() -> None:
    run = replace(quickstart(), runtime="procs")
    run = replace(run, roles=replace(run.roles, generators=2, references=0))
    stage = run.stages[-1]
    (_, weights, _), (_, answers, _) = moved(stage, run, 100.0)
    assert weights == 200.0
    assert answers == 3 * 13 * stage.batch * stage.samples * stage.sampling.max_new_tokens


def test_ranks_of_a_sequence_share_its_activations() -> None:
    run = quickstart()
    stage = run.stages[-1]
    shape = shape_behind(stage.model, run)
    assert shape is not None
    spread = replace(stage, learner=replace(stage.learner, strategy=FSDP2(ranks=2, sequence_parallel=2)))
    alone, ranks = stage_memory(stage, shape), stage_memory(spread, shape).ranks
    assert ranks is not None
    assert ranks.activations == alone.activations / 2
    assert ranks.copy == alone.own.weights, "rank 0 gathers the whole model beside its share"
