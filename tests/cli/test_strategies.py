"""A run's learner is spread over ranks by flags, and logs what one device logs."""

import pytest
from cli_examples import RECIPES
from processes import events

STAGES = ("sft", "reward", "ppo")


def losses(folder):
    """(stage, step, loss) of a run."""
    found = [event for event in events(folder) if event["kind"] == "metrics" and "loss" in event["values"]]
    return {(event["stage"], event["step"]): event["values"]["loss"] for event in found}


@pytest.mark.parametrize("field", ["sequence_parallel", "tensor_parallel"])
def test_sft_a_reward_model_and_ppo_train_on_two_ranks_as_on_one_device(field, penstock, tmp_path):
    flags = [(f"--{stage}.learner.strategy", "FSDP2", f"--{stage}.learner.strategy.{field}", "2") for stage in STAGES]
    for name, words in {"one": (), "ranks": [word for group in flags for word in group]}.items():
        ended = penstock("train", f"{RECIPES}:everything", "--steps", "2", "--name", name, *words)
        assert ended.code == 0, ended.err
    expected = losses(tmp_path / "runs" / "one")
    assert len(expected) == 3 + 3 + 2
    assert losses(tmp_path / "runs" / "ranks") == pytest.approx(expected, abs=1e-4)
