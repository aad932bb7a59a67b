"""What a stage will take, in numbers, by hand: which process holds what, and where."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.explanation import explain
from penstock.config.learner import LoRA
from penstock.config.optimizers import AdamW8bit
from penstock.config.run import ModelSpec, RewardSpec
from penstock.config.strategies import FSDP2
from penstock.models.presets import folder_of, shape_behind
from penstock.plan.memory import footprint, moved, rank_footprint, reward_model
from penstock.plan.passes import training_bytes
from penstock.plan.processes import BASE, Item, Process, processes
from penstock.recipes.quickstart import quickstart

CONFIG = {
    "model_type": "llama", "hidden_size": 8, "intermediate_size": 10, "num_hidden_layers": 3, "num_attention_heads": 2,
    "num_key_value_heads": 1, "vocab_size": 20, "tie_word_embeddings": True,
}  # fmt: skip
"""A block: attention 8·4·(4+2) = 192, feed-forward 240, norms 16: 448. Embeddings 160, norm 8: 1,512 in all."""


def planned(**changes: Any) -> tuple[Any, Any, Any]:
    """The last stage of a run on a processor, with changes to its learner; the run; and the shape of its model."""
    run = replace(quickstart(), device="cpu")
    stage = replace(run.stages[-1], learner=replace(run.stages[-1].learner, **changes), evaluation=None)
    run = replace(run, stages=(*run.stages[:-1], stage))
    return stage, run, shape_behind(stage.model, run)


def held(process: Process) -> dict[str, float | None]:
    return {item.what: item.bytes for item in process.items if item.bytes != 0}


def folder(place: Path, **changes: Any) -> str:
    place.mkdir(parents=True)
    (place / "config.json").write_text(json.dumps(CONFIG | changes))
    return str(place)


def test_a_stage_takes_what_stands_in_memory_and_what_its_batch_needs() -> None:
    stage, run, shape = planned()
    (process,) = processes(stage, run)
    own, position = footprint(shape, stage.learner), shape.cache_bytes_per_token
    assert held(process) == {
        "policy": own.weights,
        "gradients": own.gradients,
        "moments": own.moments,
        "activations": training_bytes(shape, stage.learner),
        "state while a save is written": 12.0 * shape.parameters,
        "cache": stage.max_running * 65 * position,  # 4 new tokens in a step of 64 positions, and one for idle writes
    }
    assert process.peak("device", "host") == sum(count or 0.0 for count in held(process).values()) + (BASE.bytes or 0.0)


def test_what_is_not_there_at_one_moment_does_not_add_up() -> None:
    items = (Item("a", 5.0), Item("b", 3.0, at=("training",)), Item("c", 4.0, at=("scoring",)), Item("d", 7.0, "host"))
    assert Process("one", items).peak("device") == 9.0
    assert Process("one", items).peak("host") == 7.0 + (BASE.bytes or 0.0)


def test_reward_models_count_by_their_own_shape_and_one_that_is_not_here_is_not_zero(tmp_path: Path) -> None:
    stage, run, _ = planned()
    small, large = folder(tmp_path / "small"), folder(tmp_path / "large", num_hidden_layers=4)
    rewards = tuple(RewardSpec(function=f"model:{path}") for path in (small, large, "somebody/judge"))
    (process,) = processes(replace(stage, rewards=rewards), run)
    sizes = [item.bytes for item in process.items if item.what == "reward model"]
    assert sizes == [4.0 * (1512 + 8), 4.0 * (1512 + 448 + 8), None]
    assert "and what is not known" in next(process.lines(False))[1]
    assert any("somebody/judge" in value for _, value in process.lines(False))


def test_reward_models_of_an_evaluation_are_the_learner_s_and_no_worker_s(tmp_path: Path) -> None:
    stage, run, _ = planned()
    judge = RewardSpec(function=f"model:{folder(tmp_path / 'judge')}")
    stage = replace(stage, evaluation=replace(quickstart().stages[-1].evaluation, rewards=(judge,)))
    learner, _, worker = processes(stage, replace(run, runtime="procs"))
    assert held(learner)["reward model"] == 4.0 * 1520
    assert "reward model" not in held(worker)


def test_a_reward_model_is_held_in_the_learner_s_type() -> None:
    stage, _, shape = planned()
    assert reward_model(shape, replace(stage.learner, dtype="bfloat16")) == 2.0 * (shape.parameters + shape.width)


def test_device_and_host_are_apart_where_a_gpu_computes() -> None:
    stage, run, shape = planned(dtype="bfloat16")
    (process,) = processes(stage, replace(run, device="cuda"))
    number = shape.parameters
    assert process.peak("host") == 12.0 * number + 2.0 * number + (BASE.bytes or 0.0), "a save's copy, and a file of bfloat16"
    assert held(process)["a model file being read"] == 4.0 * number
    assert held(process)["float32 masters"] == 4.0 * number


def test_a_save_copies_moments_of_8_bits_as_they_are() -> None:
    stage, run, shape = planned(optimizer=AdamW8bit())
    (process,) = processes(stage, run)
    assert held(process)["state while a save is written"] == shape.parameters * (4 + 2 * (1 + 4 / 256))
    assert held(process)["the 8-bit step"] == 53.0 * max(shape.width * shape.hidden, shape.vocabulary * shape.width)


def test_the_reference_of_adapters_takes_nothing_but_its_pass() -> None:
    stage, run, shape = planned(lora=LoRA())
    algorithm = replace(stage.algorithm, kl=replace(stage.algorithm.kl, coefficient=0.1))
    (process,) = processes(replace(stage, algorithm=algorithm), run)
    assert "reference" not in held(process)
    assert "a pass of the reference" in held(process)
    (whole,) = processes(replace(planned()[0], algorithm=algorithm), run)
    assert held(whole)["reference"] == 4.0 * shape.parameters


def test_rank_0_holds_the_whole_model_and_the_references_beside_its_share() -> None:
    stage, run, shape = planned(strategy=FSDP2(ranks=2, sequence_parallel=2))
    algorithm = replace(stage.algorithm, kl=replace(stage.algorithm.kl, coefficient=0.1))
    first, other = processes(replace(stage, algorithm=algorithm), run)
    share = rank_footprint(shape, stage.learner)
    assert held(other)["moments"] == share.moments == 4.0 * shape.parameters
    assert held(other)["activations"] == training_bytes(shape, stage.learner) / 2
    more = {"the whole model", "reference", "a pass of the reference", "cache", "state while a save is written"}
    assert held(first).keys() - held(other).keys() == more
    assert held(first)["the whole model"] == held(first)["reference"] == 4.0 * shape.parameters


def test_each_process_of_a_run_of_processes_has_its_own(tmp_path: Path) -> None:
    stage, run, shape = planned()
    algorithm = replace(stage.algorithm, kl=replace(stage.algorithm.kl, coefficient=0.1))
    stage = replace(stage, algorithm=algorithm, rewards=(RewardSpec(function=f"model:{folder(tmp_path / 'judge')}"),))
    run = replace(run, runtime="procs", roles=replace(run.roles, generators=3, references=1))
    found = {process.name: held(process) for process in processes(stage, run)}
    assert list(found) == ["the learner", "each of 3 generators", "the reward worker", "the reference"]
    assert found["the learner"]["weights on their way"] == 3 * 4.0 * shape.parameters
    assert "reference" not in found["the learner"]
    assert found["the reference"]["reference"] == found["each of 3 generators"]["policy"] == 4.0 * shape.parameters
    assert found["the reward worker"]["reward model"] == 4.0 * 1520
    assert "reward model" not in found["the learner"]


def test_a_cache_takes_no_more_than_the_engine_may() -> None:
    stage, run, _ = planned()
    engines = [replace(run.roles.engine, cache_gb=gb) for gb in (0.0, 0.001, 99.0)]
    runs = [replace(run, roles=replace(run.roles, engine=engine)) for engine in engines]
    found = [held(processes(stage, one)[0])["cache"] for one in runs]
    assert found == [found[0], 1e6, found[0]]


def test_a_hub_s_cache_is_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    kept = tmp_path / "models--some--model"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text("abc")
    folder(kept / "snapshots" / "abc")
    run = quickstart()
    found = shape_behind(ModelSpec(path="some/model"), run)
    assert found is not None
    assert found.parameters == 1512
    assert folder_of("some/other") is None


def test_explain_says_what_is_missing_of_a_model_that_is_not_here() -> None:
    stage, run, _ = planned()
    said = explain(replace(run, stages=(*run.stages[:-1], replace(stage, model=ModelSpec(path="nobody/knows")))))
    assert any("not known: nobody/knows" in line and "hf download NAME config.json" in line for line in said)


def test_a_step_moves_weights_to_every_generator_and_answers_three_times() -> None:
    run = replace(quickstart(), runtime="procs")
    run = replace(run, roles=replace(run.roles, generators=2, references=0))
    stage = run.stages[-1]
    (_, weights, _), (_, answers, _) = moved(stage, run, 100.0)
    assert weights == 200.0
    assert answers == 3 * 13 * stage.batch * stage.samples * stage.sampling.max_new_tokens
