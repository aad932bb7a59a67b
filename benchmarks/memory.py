"""What ``penstock explain`` computes of a process's memory, beside the peak that was measured.

    python benchmarks/memory.py [NAME ...]

Each setting is trained in a process of its own on the CPU, by what a stage makes of its spec (``online_parts``): two steps with
full micro-batches, the second with two of them, so that gradients and moments are there when activations are; then its pools
are filled, references and reward models score, and a save is under way while another micro-batch is trained, as on a slow disk.
The peak is the largest resident memory (``VmHWM``) above what the process held after its imports and a first small step. Large
blocks go back to the system at once (``MALLOC_MMAP_THRESHOLD_``, one arena), so that what is measured is what is held and not
what the allocator keeps; with ``--kept`` it keeps them, as in a run. The file that weights are read from is not counted: the
system takes its pages back.

With ``--large``, the computed bytes of a 7B shape, four models in different ways.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from penstock.algos import GRPO, PPO
from penstock.config.learner import LearnerSpec, LoRA
from penstock.config.optimizers import AdamW8bit
from penstock.config.run import ModelSpec, Online, RewardSpec, Run, Sampling
from penstock.config.strategies import DDP, FSDP2
from penstock.models.presets import Shape
from penstock.plan.memory import footprint
from penstock.plan.passes import SCORED
from penstock.plan.processes import BASE, Process, processes
from penstock.recipes.quickstart import numbers

SEVEN = Shape(width=4096, hidden=11008, layers=32, heads=32, key_value_heads=32, vocabulary=32000, tied=False)
"""The shape of Llama 2 7B."""

WAYS = {
    "four separate models": LearnerSpec(critic="separate"),
    "four separate models, 8-bit moments": LearnerSpec(critic="separate", optimizer=AdamW8bit()),
    "shared trunk, 2 layers": LearnerSpec(critic="branch", unfrozen_layers=2),
    "shared trunk, 2 layers, 8-bit moments": LearnerSpec(critic="branch", unfrozen_layers=2, optimizer=AdamW8bit()),
    "LoRA, rank 16": LearnerSpec(critic="shared", lora=LoRA()),
    "LoRA, rank 16, 8-bit moments": LearnerSpec(critic="shared", lora=LoRA(), optimizer=AdamW8bit()),
    "LoRA on 4 bits, rank 16": LearnerSpec(critic="shared", lora=LoRA(quantize="nf4")),
}

S10 = Shape(384, 1024, 6, 6, 2, vocabulary=1024)
S25 = Shape(512, 1408, 8, 8, 4, vocabulary=8192)
S60 = Shape(640, 1728, 10, 10, 5, vocabulary=16384, tied=False)
S100 = Shape(768, 2048, 12, 12, 4, vocabulary=16384)
BUDGET = 1024
LENGTH = 256


@dataclass(frozen=True)
class Setting:
    """What is trained, and what is held with it."""

    shape: Shape
    learner: LearnerSpec
    kl: bool = False
    """With a reference."""
    judge: Shape | None = None
    temperature: float = 1.0
    entropy: bool = False
    save: bool = False
    rows: int = 1
    """Running rows of the generator, of 64 new tokens."""


def of(shape: Shape, *, more: dict[str, Any] | None = None, budget: int = BUDGET, **learner: Any) -> Setting:
    return Setting(shape, LearnerSpec(token_budget=budget, **learner), **(more or {}))


SETTINGS = {
    "10M": of(S10),
    "10M, 4,096 tokens": of(S10, budget=4096),
    "10M, saved": of(S10, more={"save": True}),
    "25M": of(S25),
    "25M, saved": of(S25, more={"save": True}),
    "60M": of(S60, budget=512),
    "60M, saved": of(S60, budget=512, more={"save": True}),
    "100M": of(S100, budget=512),
    "25M, temperature 0.7": of(S25, more={"temperature": 0.7}),
    "25M, entropy": of(S25, more={"entropy": True}),
    "25M, reference": of(S25, more={"kl": True}),
    "25M, 256 rows generated": of(S25, more={"rows": 256}),
    "25M, reward model of 10M": of(S25, more={"judge": S10}),
    "25M, reward model of 60M": of(S25, more={"judge": S60}),
    "25M, reference, reward model of 25M, saved": of(S25, more={"kl": True, "judge": S25, "save": True}),
    "25M, critic shared": of(S25, critic="shared"),
    "25M, critic separate": of(S25, critic="separate"),
    "25M, critic separate, saved": of(S25, critic="separate", more={"save": True}),
    "25M, critic branch on 2 layers": of(S25, critic="branch", unfrozen_layers=2, more={"kl": True}),
    "25M, bfloat16": of(S25, dtype="bfloat16"),
    "25M, bfloat16, reward model of 60M": of(S25, dtype="bfloat16", more={"judge": S60}),
    "25M, mixed": of(S25, dtype="mixed"),
    "25M, 8-bit moments": of(S25, optimizer=AdamW8bit()),
    "25M, 8-bit moments, saved": of(S25, optimizer=AdamW8bit(), more={"save": True}),
    "60M, LoRA": of(S60, lora=LoRA()),
    "60M, LoRA in bfloat16": of(S60, lora=LoRA(), dtype="bfloat16"),
    "60M, LoRA, reference, saved": of(S60, lora=LoRA(), more={"kl": True, "save": True}),
    "25M, blocks computed again": of(S25, gradient_checkpointing=True),
    "25M, DDP on 2 ranks": of(S25, strategy=DDP(ranks=2)),
    "25M, FSDP2 on 2 ranks": of(S25, strategy=FSDP2(ranks=2)),
    "60M, FSDP2 on 2 ranks, reference": of(S60, budget=512, strategy=FSDP2(ranks=2), more={"kl": True}),
    "25M, FSDP2 on 2 ranks, saved": of(S25, strategy=FSDP2(ranks=2), more={"save": True}),
}


def the_run(setting: Setting, folder: Path) -> tuple[Online, Run]:
    """The stage of a setting over the models in a folder, and its run."""
    kind = PPO if setting.learner.critic != "none" else GRPO
    algorithm = kind()
    algorithm = replace(algorithm, kl=replace(algorithm.kl, coefficient=0.1 if setting.kl else 0.0))
    if setting.entropy:
        algorithm = replace(algorithm, entropy=replace(algorithm.entropy, coefficient=0.01))
    reward = RewardSpec(function=f"model:{folder / 'judge'}" if setting.judge else "exact_match")
    stage = Online(
        name="measured", model=ModelSpec(path=str(folder / "policy")), data=numbers(64, seed=1), rewards=(reward,),
        algorithm=algorithm, learner=setting.learner, batch=4, samples=4, steps=4, max_running=setting.rows,
        sampling=Sampling(max_new_tokens=64, temperature=setting.temperature),
    )  # fmt: skip
    return stage, Run(name="measured", stages=(stage,), device="cpu", threads=1)


def status(name: str, process: int | str = "self") -> int:
    """Bytes of a line of a process's status."""
    with open(f"/proc/{process}/status", encoding="ascii") as file:
        return 1024 * next(int(line.split()[1]) for line in file if line.startswith(name))


def write_models(setting: Setting, folder: Path) -> None:
    """The models of a setting with random weights, as folders."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, Qwen2Config

    from penstock.models.files import save_model
    from penstock.models.language_model import LanguageModel
    from penstock.models.text import train_tokenizer

    letters = random.Random(0)
    text = train_tokenizer((" ".join("".join(letters.choices("01 =abc", k=5)) for _ in range(20)) for _ in range(99)), 300)
    for name, shape, factory in (
        ("policy", setting.shape, AutoModelForCausalLM), ("judge", setting.judge, AutoModelForSequenceClassification),
    ):  # fmt: skip
        if shape is not None:
            config = Qwen2Config(
                vocab_size=shape.vocabulary, hidden_size=shape.width, intermediate_size=shape.hidden, pad_token_id=text.pad,
                num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.key_value_heads,
                max_position_embeddings=4096, tie_word_embeddings=shape.tied, eos_token_id=text.end, bos_token_id=None,
            )  # fmt: skip
            config.num_labels = 1
            torch.manual_seed(0)
            made = factory.from_config(config, dtype=torch.float32)
            save_model(LanguageModel(made, text, "lm" if name == "policy" else "score"), folder / name)


class Passes:
    """A stage's parts, and full micro-batches for them: samples of random tokens, all but the first one actions."""

    def __init__(self, setting: Setting, folder: Path) -> None:
        from penstock.runtime.build import Models
        from penstock.runtime.stages.online import online_parts

        self.stage, self.run = the_run(setting, folder)
        self.parts = online_parts(self.stage, self.run, Models(lambda name: folder / name, "cpu", 0), folder)
        self.generator = self.parts.generator(self.parts.model)

    def groups(self, tokens: int) -> list[Any]:
        import numpy as np

        from penstock.core.types import Group, Prompt, PromptKey, Sample, SampleKey

        drawn, found = np.random.default_rng(0), []
        for ordinal in range(max(1, tokens // LENGTH // 2)):
            key, samples = PromptKey("measured", 0, ordinal), []
            length = min(LENGTH, tokens // 2)
            for number in range(2):
                tokens_T = drawn.integers(2, 300, length).astype(np.int32)
                tokens_T[0] = 2
                action_T = np.arange(length) > 0
                logp_T, version_T = np.full(length, -1.0, np.float32), np.where(action_T, 0, -1).astype(np.int32)
                made = Sample(SampleKey(key, number), {"tokens_T": tokens_T}, action_T, logp_T, version_T, "length")
                samples.append(made.scored(float(number)))
            found.append(Group(Prompt(key, "="), tuple(samples)))
        return found

    def accumulate(self, tokens: int, batches: int = 1) -> None:
        """So many full micro-batches for each copy of the model, labelled as the loop does it."""
        from penstock.core.contracts import Denominator

        learner, loss = self.parts.learner, self.stage.algorithm.loss()
        units = self.parts.labeller.label(self.groups(tokens))
        for _ in range(batches * self.stage.strategy.ranks):
            for batch in learner.lay_out(units, coupled=False):
                learner.accumulate(batch, loss, Denominator.of(units))

    def generate(self) -> None:
        """Fill the generator's cache and let reward models score."""
        memory = self.generator.memory
        memory.reserve((1, 64), (self.stage.max_running, 64), 64)
        for tensor in (*memory.own.keys, *memory.own.values):
            tensor.fill_(1.0)
        for reward in self.parts.rewards._models:
            reward._scorer.score(rows_of(self.groups(SCORED)), frozenset({"score"}))


def rows_of(groups: list[Any]) -> list[Any]:
    """The samples of groups as rows, a unit each group."""
    from penstock.core.types import Row

    return [tuple(Row(sample.columns, sample.action_T) for sample in group.samples) for group in groups]


def save_slowly(passes: Passes, folder: Path, tokens: int) -> None:
    """A save under way while a step is taken."""
    from penstock.ckpt.background import Saver
    from penstock.ckpt.store import CheckpointStore, Pending, Position

    trained = threading.Event()

    class SlowStore(CheckpointStore):
        def write(self, pending: Pending) -> Path:
            if not pending.in_pieces:  # which are written before training goes on
                trained.wait()
            return super().write(pending)

    (folder / "checkpoints").mkdir()
    with Saver(SlowStore(folder / "checkpoints"), lambda *_, **__: None) as saver:
        saver.save(Position(0, "measured", 1), {"learner": passes.parts.learner.state()})
        passes.accumulate(tokens, 2)
        passes.parts.learner.step()
        trained.set()


def take(setting: Setting, folder: Path) -> dict[str, list[float]]:
    """What a setting is computed to take and what it takes, in bytes: this process, and the first rank besides it."""
    import torch

    from penstock.train.device import set_up
    from penstock.train.fleet import fleet_of

    set_up("cpu", 1)
    write_models(setting, folder)
    others: list[Any] = []
    if (ranks := setting.learner.strategy.ranks) > 1:
        fleet = fleet_of(ranks, torch.device("cpu"))
        fleet.hold()  # so that the ranks outlive the small learner
        others = [handle.process.pid for handle in fleet.handles if handle.process is not None]
    warm = Setting(Shape(64, 128, 2, 2, 2, vocabulary=512), replace(setting.learner, token_budget=64))
    write_models(warm, folder / "warm")
    warmed = Passes(warm, folder / "warm")
    warmed.accumulate(64)
    warmed.parts.learner.step()
    warmed.parts.learner.close()
    del warmed
    gc.collect()
    here = ["self", *others[:1]]
    before = [anew(one) for one in here]
    passes, tokens = Passes(setting, folder), setting.learner.token_budget
    loading = status("VmHWM") - before[0] - max(file.stat().st_size for file in folder.glob("*/model.safetensors"))
    for one in here:
        anew(one)
    passes.accumulate(tokens)
    passes.parts.learner.step()
    passes.generate()
    if setting.save:
        save_slowly(passes, folder, tokens)
    else:
        passes.accumulate(tokens, 2)
        passes.parts.learner.step()
    peaks = [status("VmHWM", one) - start for one, start in zip(here, before, strict=True)]
    computed = [one.peak("device", "host") - (BASE.bytes or 0.0) for one in computed_of(passes.stage, passes.run, setting)]
    return {"measured": [max(peaks[0], loading), *peaks[1:]], "computed": computed}


def computed_of(stage: Online, run: Run, setting: Setting) -> list[Process]:
    """The processes of a stage; without the copy of a save where none is measured."""
    found = processes(stage, run)
    kept = [tuple(item for item in one.items if setting.save or not item.what.startswith("state while")) for one in found]
    return [Process(one.name, items) for one, items in zip(found, kept, strict=True)]


def anew(process: int | str) -> int:
    """Begin to look for a peak; gives what is resident now."""
    with open(f"/proc/{process}/clear_refs", "w", encoding="ascii") as file:
        file.write("5")
    return status("VmRSS", process)


def measured(name: str, kept: bool = False) -> list[str]:
    """Rows of the table for one setting; ``kept``: with memory that is freed kept for the next step."""
    returned = {} if kept else {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | returned
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, __file__, "--take", folder, name]
        done = subprocess.run(words, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr[-3000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    rows = []
    for place, (peak, said) in enumerate(zip(found["measured"], found["computed"], strict=True)):
        rank = f", rank {place}" if len(found["measured"]) > 1 else ""
        rows.append(f"| {name}{rank} | {peak / 1e6:.0f} | {said / 1e6:.0f} | {said / peak:.2f} |")
    return rows


def large() -> None:
    """Four models of a 7B shape."""
    print(f"7B shape, {SEVEN.parameters:,} parameters, bfloat16 with float32 masters; computed, GB (10^9 bytes)\n")
    print("| | weights | masters | gradients | moments | total | saved |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    whole = 0.0
    for way, spec in WAYS.items():
        held = footprint(SEVEN, replace(spec, dtype="bfloat16"), reference=True, reward_models=1)
        whole = whole or held.total
        numbers = [f"{x / 1e9:.1f}" for x in (held.weights, held.masters, held.gradients, held.moments, held.total)]
        print(f"| {way} | {' | '.join(numbers)} | {1 - held.total / whole:.1%} |")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--take", default="")
    parser.add_argument("--kept", action="store_true")
    parser.add_argument("--large", action="store_true")
    asked = parser.parse_args()
    if asked.take:
        print(json.dumps(take(SETTINGS[asked.names[0]], Path(asked.take))))
        return
    if asked.large:
        return large()
    print("| | measured, MB | computed, MB | ratio |\n| --- | ---: | ---: | ---: |")
    for name in asked.names or SETTINGS:
        print("\n".join(measured(name, asked.kept)), flush=True)


if __name__ == "__main__":
    main()
