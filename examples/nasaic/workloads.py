"""Pairs of tasks that one accelerator serves, and a real small trainer for the networks: convolutions on images that come with
scikit-learn. Accuracies are of held-out images, trained once for an architecture and remembered."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch
from costs import Layer
from sklearn.datasets import load_digits
from torch import nn

WIDTHS = (4, 8, 16, 32)
"""Channels that a block may have."""
DEPTH, SIZE = 3, 8
TASKS = ("digits", "strokes", "parity")
"""Which digit it is; which pixels of a noisy digit are ink (as nuclei are cut out); whether the digit is odd."""
WORKLOADS = {"W1": ("digits", "strokes"), "W2": ("digits", "parity"), "W3": ("digits", "digits")}
EPOCHS = 12


@cache
def data(task: str) -> tuple[torch.Tensor, ...]:
    """Images and targets to train on, and held-out ones: every fourth."""
    found = load_digits()
    images = torch.tensor(found.images / 16, dtype=torch.float32)[:, None]
    targets = torch.tensor(found.target if task == "digits" else found.target % 2)
    if task == "strokes":
        targets = (images[:, 0] > 0.4).long()
        images = images + 0.35 * torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    held = torch.arange(len(images)) % 4 == 0
    return images[~held], targets[~held], images[held], targets[held]


def layers_of(task: str, widths: Sequence[int]) -> list[Layer]:
    """The network's layers as the cost model reads them; all at full size, so that strokes can be cut out."""
    found, before = [], 1
    for width in widths:
        found.append(Layer(before, width, 3, SIZE))
        before = width
    out = {"digits": 10, "strokes": 2, "parity": 2}[task]
    return [*found, Layer(before, out, 1, SIZE if task == "strokes" else 1)]


def trained(task: str, widths: Sequence[int]) -> float:
    """Accuracy of a network of these widths after training it from scratch. Deterministic."""
    torch.manual_seed(0)
    seen, targets, held, wanted = data(task)
    blocks: list[nn.Module] = []
    before = 1
    for width in widths:
        blocks += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU()]
        before = width
    out = {"digits": 10, "strokes": 2, "parity": 2}[task]
    blocks += (
        [nn.Conv2d(before, out, 1)] if task == "strokes" else [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, out)]
    )
    network = nn.Sequential(*blocks)
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=EPOCHS * -(-len(seen) // 128))
    for _ in range(EPOCHS):
        for part in torch.randperm(len(seen)).split(128):
            loss = nn.functional.cross_entropy(network(seen[part]), targets[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    with torch.inference_mode():
        return float((network(held).argmax(1) == wanted).float().mean())


class Accuracies:
    """Accuracies by architecture, trained when they are first asked for and kept in a file."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.known: dict[str, float] = json.loads(file.read_text()) if file.exists() else {}

    def __call__(self, task: str, widths: Sequence[int]) -> float:
        name = f"{task} {'-'.join(map(str, widths))}"
        if name not in self.known:
            self.known[name] = trained(task, widths)
            temporary = self.file.with_suffix(".new")
            temporary.write_text(json.dumps(self.known, indent=0, sort_keys=True))
            temporary.replace(self.file)
        return self.known[name]


def best_widths(task: str, accuracies: Accuracies) -> tuple[int, ...]:
    """The most accurate of all architectures."""
    every = np.stack(np.meshgrid(*[WIDTHS] * DEPTH, indexing="ij"), -1).reshape(-1, DEPTH).tolist()
    return tuple(max(every, key=lambda widths: (accuracies(task, widths), -sum(widths))))
