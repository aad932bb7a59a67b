"""What a stage that trains a denoiser holds: ours by its preset, a published pipeline by the headers of its parts' files."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from penstock.config.learner import LearnerSpec
from penstock.config.run import ModelSpec, Run
from penstock.models.presets import DENOISER_WIDTHS, folder_of, pipeline_of, shapes_in
from penstock.plan.memory import MOMENTS
from penstock.plan.processes import RUNNING, Item, Process

NETWORKS = ("unet", "transformer")
"""Folder of the network that is trained, by the class of a pipeline; all else is frozen."""
FREQUENCIES = 32
"""Waves that a denoiser's time is written in (``models/diffusion/denoiser.py``, which imports torch)."""


def denoiser_numbers(spec: ModelSpec) -> int:
    """Parameters of a denoiser from scratch: embeddings of pieces and places, of the time; into and out of its blocks, which
    have four matrices and a half of their width squared."""
    assert spec.denoiser is not None
    (width, blocks), size = DENOISER_WIDTHS[spec.preset], math.prod(spec.denoiser.shape)
    outside = (spec.vocabulary + spec.context) * width + (2 * FREQUENCIES + 1 + width + 1) * width
    outside += (size + 1) * width + 2 * width + (width + 1) * size
    return outside + blocks * (6 * width * width + 5 * width)


def denoiser_kept(spec: ModelSpec, learner: LearnerSpec) -> float:
    """What it keeps of a micro-batch for the backward pass: of a transition, in each block the input of the norm, its output,
    scale and product, and twice the double width; the picture at both ends."""
    assert spec.denoiser is not None
    (width, blocks), size = DENOISER_WIDTHS[spec.preset], math.prod(spec.denoiser.shape)
    return 4.0 * learner.token_budget * (8 * width * blocks + 2 * width + size)


def adapters_of(shapes: dict[str, list[int]], learner: LearnerSpec) -> int:
    """Numbers of low-rank adapters next to the linear layers of a network's blocks."""
    assert learner.lora is not None
    names = [name for name, shape in shapes.items() if name.endswith(".weight") and len(shape) == 2]
    ends = tuple(f".{target}.weight" for target in learner.lora.targets)
    chosen = [name for name in names if (f".{name}".endswith(ends) if ends else "block" in name)]
    return learner.lora.rank * sum(sum(shapes[name]) for name in chosen)


def picture_process(stage: Any, run: Run) -> Process:
    """The process of a stage that trains a denoiser, in float32."""
    spec, learner, found = stage.model, stage.learner, list[Item]()
    while spec.path.startswith("@"):
        spec = next(one for one in run.stages if one.name == spec.path[1:]).model
    kept: float | None = None
    if spec.denoiser is not None:
        numbers = trained = denoiser_numbers(spec)
        kept = denoiser_kept(spec, learner)
    else:
        folder = folder_of(spec.path)
        parts = {} if folder is None else {part.name: shapes_in(part) for part in component_folders(folder)}
        network = next((parts.pop(name) for name in NETWORKS if parts.get(name)), None)
        if network is None:
            about = f"{spec.path}: its weights are not here, in a folder or the hub's cache"
            return Process("the process", (Item("pipeline", None, about=about),))
        numbers = sum(math.prod(shape) for shape in network.values())
        trained = numbers if learner.lora is None else adapters_of(network, learner)
        numbers += 0 if learner.lora is None else trained
        found += [Item(f"{name}, frozen", 4.0 * sum(map(math.prod, shapes.values()))) for name, shapes in parts.items()]
    moments = MOMENTS[type(learner.optimizer)] * trained
    found = [
        Item("network", 4.0 * numbers), *found,
        Item("reference", 4.0 * numbers if stage.algorithm.reference and learner.lora is None else 0.0),
        Item("moments", moments, at=RUNNING), Item("gradients", 4.0 * trained, at=("training", "stepping")),
        Item("activations", kept, at=("training",), about=f"a micro-batch of {learner.token_budget:,} transitions"),
        Item("state while a save is written", 4.0 * trained + moments, "host", RUNNING, "a copy of masters and moments"),
    ]  # fmt: skip
    return Process("the process", tuple(found))


def component_folders(folder: Path) -> list[Path]:
    """Folders of a pipeline's networks."""
    named = json.loads((folder / "model_index.json").read_text(encoding="utf-8")) if pipeline_of(folder) else {}
    return [folder / name for name, said in named.items() if isinstance(said, list) and (folder / name).is_dir()]
