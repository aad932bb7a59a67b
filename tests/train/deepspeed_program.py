"""What test_deepspeed.py runs in processes of their own, because DeepSpeed has one group of ranks in a process's life.

``equal STAGE`` prints the largest gaps to one device over 20 steps of each algorithm; ``write STAGE RANKS FOLDER`` trains and
leaves a checkpoint and what came after it; ``resume STAGE RANKS FOLDER`` goes on from it and prints the gaps to that.
"""

import copy
import json
import sys
from pathlib import Path

from rank_examples import LOSSES, SCHEDULE, batches_for, learners, train, units_for, widest_gap
from safetensors.torch import load_file, save_file

import tiny_models
from penstock.ckpt.store import CheckpointStore, Position
from penstock.config.strategies import DeepSpeed, OneDevice
from penstock.models.text import train_tokenizer


def gap(found, expected):
    assert found.keys() == expected.keys()
    return max(abs(found[name] - expected[name]) / max(1.0, abs(expected[name])) for name in expected)


def equal(tiny, stage):
    return {algorithm: gaps(tiny, algorithm, int(stage)) for algorithm in LOSSES}


def gaps(tiny, algorithm, stage):
    widest = 0.0
    with learners(tiny, [OneDevice(), DeepSpeed(stage=stage)], **SCHEDULE) as (one, other):
        for units in batches_for(algorithm, range(20), tiny()):
            expected, found = (train(learner, units, LOSSES[algorithm]) for learner in (one, other))
            widest = max(widest, abs(found["loss"] - expected["loss"]), gap(found, expected) / 10)
        return {"metrics": widest, "weights": widest_gap(other.weights(), one.weights())}


def write(tiny, stage, ranks, folder):
    with learners(tiny, [DeepSpeed(stage=int(stage), ranks=int(ranks))]) as (learner,):
        for seed in range(3):
            train(learner, units_for("SFT", seed, tiny()), LOSSES["SFT"])
        CheckpointStore(Path(folder)).save(Position(0, "sft", 3), {"learner": learner.state()})
        after = [train(learner, units_for("SFT", seed, tiny()), LOSSES["SFT"]) for seed in range(3, 6)]
        save_file({name: tensor.contiguous() for name, tensor in learner.weights()}, Path(folder) / "after.safetensors")
    (Path(folder) / "after.json").write_text(json.dumps(after))
    return {}


def resume(tiny, stage, ranks, folder):
    strategy = DeepSpeed(stage=int(stage), ranks=int(ranks)) if int(ranks) else OneDevice()
    expected = json.loads((Path(folder) / "after.json").read_text())
    with learners(tiny, [strategy]) as (learner,):
        loaded = CheckpointStore(Path(folder)).load_newest()
        assert loaded is not None
        learner.load_state(loaded.states["learner"])
        found = [train(learner, units_for("SFT", seed, tiny()), LOSSES["SFT"]) for seed in range(3, 6)]
        weights = load_file(Path(folder) / "after.safetensors")
        gaps = [gap(*pair) for pair in zip(found, expected, strict=True)]
        return {"metrics": max(gaps), "weights": widest_gap(learner.weights(), weights.items())}


if __name__ == "__main__":
    model = tiny_models.build("qwen2", train_tokenizer(tiny_models.CORPUS, 300))
    verb, *arguments = sys.argv[1:]
    told = {"equal": equal, "write": write, "resume": resume}[verb](lambda: copy.deepcopy(model), *arguments)
    print("\n" + json.dumps(told))
