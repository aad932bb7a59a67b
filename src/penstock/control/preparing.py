"""What a control stage is made of: its policy, new or loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.config.spec import require
from penstock.control.environments import Environments
from penstock.control.stage import Control
from penstock.core.errors import SpecError
from penstock.models.control import ControlPolicy, Shape, load_policy, new_policy

OF_NETWORK = ("hidden", "activation", "memory", "critic", "normalize", "deviation")
"""Fields of the stage's network that its shape has as well."""


def policy_of(stage: Control, environments: Environments, seed: int, device: Any, path: Path | None) -> ControlPolicy:
    """The policy of a stage: a new one for its environments, or the one in a folder.

    Raises:
        SpecError: that one observes or decides something else.
    """
    seen, network = environments.seen, stage.model
    wanted = (environments.numbers, environments.choices, environments.continuous, seen.image, seen.masked)
    if path is None:
        own = {name: getattr(network, name) for name in OF_NETWORK}
        require(
            not (seen.image and network.normalize),
            f"{stage.name}: bytes of an image are divided by 255, and their moments are not kept; set model.normalize=false",
        )
        layers = network.convolutions if seen.image else ()
        shape = Shape(*wanted[:3], **own, image=seen.image, convolutions=layers, masked=seen.masked)
        return new_policy(shape, seed, device)
    policy = load_policy(path, device)
    shape = policy.network.shape
    if (shape.observation, shape.choices, shape.continuous, shape.image, shape.masked) != wanted:
        raise SpecError(
            f"model.path={network.path}: that policy was made for {shape.observation} numbers seen, options {shape.choices} and"
            f" {shape.continuous} continuous numbers decided, image {shape.image}, masked {shape.masked}; {environments.name} "
            f"has {wanted}; name another"
        )
    return policy
