"""Bytes that a policy, its critic, its reference and a reward model hold: apart, on a shared trunk, with adapters, in 8 bits.

    python benchmarks/memory.py

Measures the 10m preset, each way in a process of its own, after one training step: every tensor of parameters, gradients and
optimizer state once, and the peak of the process's memory above what it held before a model was made. Computes the same for
a 7B shape with ``penstock.plan.memory.footprint``, whose numbers for the preset stand beside the measured ones.
"""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
from dataclasses import replace
from typing import Any

from penstock.config.learner import LearnerSpec, LoRA
from penstock.config.optimizers import AdamW8bit
from penstock.config.run import ModelSpec
from penstock.models.language_policy import LanguagePolicy
from penstock.models.presets import PRESETS, Shape
from penstock.plan.memory import Footprint, footprint

VOCABULARY = 1024
PRESET = replace(PRESETS["10m"], vocabulary=VOCABULARY)
SEVEN = Shape(width=4096, hidden=11008, layers=32, heads=32, key_value_heads=32, vocabulary=32000, tied=False)
"""The shape of Llama 2 7B."""

WAYS = {
    "four separate models": LearnerSpec(critic="separate"),
    "four separate models, 8-bit moments": LearnerSpec(critic="separate", optimizer=AdamW8bit()),
    "shared trunk, 2 layers": LearnerSpec(critic="branch", unfrozen_layers=2),
    "shared trunk, 2 layers, 8-bit moments": LearnerSpec(critic="branch", unfrozen_layers=2, optimizer=AdamW8bit()),
    "LoRA, rank 16": LearnerSpec(critic="shared", lora=LoRA()),
    "LoRA, rank 16, 8-bit moments": LearnerSpec(critic="shared", lora=LoRA(), optimizer=AdamW8bit()),
}


def storage(tensor: Any) -> int:
    """Bytes of a tensor; of a quantized one, its codes, scales and table."""
    parts = [getattr(tensor, name) for name in ("codes", "scale", "qmap") if hasattr(tensor, name)]
    return sum(part.nbytes for part in parts) if parts else tensor.nbytes


def measure(spec: LearnerSpec) -> dict[str, float]:
    """Build the four models of a way, train one step of policy and critic, and count."""
    import torch

    from penstock.models.branches import reference_branch, share_frozen
    from penstock.models.language_model import LanguageModel
    from penstock.models.restrict import restrict
    from penstock.models.scratch import build_model
    from penstock.models.text import train_tokenizer
    from penstock.train.learner import DeviceLearner, LearnerPlan

    letters = random.Random(0)
    text = train_tokenizer(
        (" ".join("".join(letters.choices("abcdefgh", k=5)) for _ in range(99)) for _ in range(99)), VOCABULARY
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def model(head: Any = "lm") -> LanguageModel:
        return build_model(ModelSpec(preset="10m"), (), 0, head, text)

    policy, scorer = model(), model("score").requires_grad_(False)
    scorer.network.base_model.load_state_dict(policy.network.base_model.state_dict())
    restrict(policy, spec)
    models = [policy, scorer]
    if spec.unfrozen_layers >= 0:
        share_frozen(scorer, policy)
        models.append(reference_branch(policy))
    elif spec.lora is None:
        models.append(model().requires_grad_(False))
    learner = DeviceLearner(LanguagePolicy(policy), spec, LearnerPlan(total_steps=1))
    for master in learner.masters.masters:
        master.grad = torch.ones_like(master)
    gradients = sum(master.grad.nbytes for master in learner.masters.masters if master.grad is not None)
    learner.step()
    moments = sum(storage(t) for state in learner.masters.adam.inner.state.values() for t in state.values())
    peak = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    weights = sum({id(p): p.nbytes for model in models for p in model.parameters()}.values())  # a shared one counts once
    found = {"weights": weights, "gradients": gradients, "moments": moments, "peak": peak}
    return found | {"total": weights + gradients + moments}


def computed(shape: Shape, spec: LearnerSpec) -> Footprint:
    return footprint(shape, spec, reference=True, reward_models=1)


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(measure(WAYS[sys.argv[1]])))
        return
    print(f"10m preset, {PRESET.parameters:,} parameters, float32; MB (10^6 bytes)\n")
    print("| | weights | gradients | moments | total | saved | computed total | process peak |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    apart = 0.0
    for way, spec in WAYS.items():
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run([sys.executable, __file__, way], capture_output=True, text=True, check=True, env=environment)
        found = json.loads(done.stdout.splitlines()[-1])
        apart = apart or found["total"]
        numbers = [f"{found[name] / 1e6:.2f}" for name in ("weights", "gradients", "moments", "total")]
        saved = 1 - found["total"] / apart
        last = [f"{saved:.1%}", f"{computed(PRESET, spec).total / 1e6:.2f}", f"{found['peak'] / 1e6:.0f}"]
        print(f"| {way} | {' | '.join([*numbers, *last])} |")
    print(f"\n7B shape, {SEVEN.parameters:,} parameters, bfloat16 with float32 masters; computed, GB (10^9 bytes)\n")
    print("| | weights | masters | gradients | moments | total | saved |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    ways = {**WAYS, "LoRA on 4 bits, rank 16": LearnerSpec(critic="shared", lora=LoRA(quantize="nf4"))}
    whole = computed(SEVEN, replace(WAYS["four separate models"], dtype="bfloat16")).total
    for way, spec in ways.items():
        held = computed(SEVEN, replace(spec, dtype="bfloat16"))
        numbers = [f"{x / 1e9:.1f}" for x in (held.weights, held.masters, held.gradients, held.moments, held.total)]
        print(f"| {way} | {' | '.join(numbers)} | {1 - held.total / whole:.1%} |")


if __name__ == "__main__":
    main()
