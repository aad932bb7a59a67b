"""What a control stage is made of: its policy, new or loaded, and what makes minibatches for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.algos.off_policy import DQN, SAC
from penstock.config.spec import require
from penstock.control.environments import Environments
from penstock.control.learning import Labeller, Passes
from penstock.control.replay import Replay, ReplayLabeller
from penstock.control.replay_policies import SoftActor, ValuesOfOptions
from penstock.control.stage import Control
from penstock.core.contracts import Learner
from penstock.core.errors import SpecError
from penstock.models.control import ControlPolicy, Shape, load_policy, new_policy

OF_NETWORK = ("hidden", "activation", "memory", "attention", "blocks", "critic", "normalize", "deviation")
"""Fields of the stage's network that its shape has as well."""
OF_VALUES = ("quantiles", "noisy")
"""Those of DQN."""


def policy_of(stage: Control, environments: Environments, seed: int, device: Any, path: Path | None) -> ControlPolicy:
    """The policy of a stage: a new one for its environments, or the one in a folder.

    Raises:
        SpecError: that one, or the algorithm, observes or decides something else.
    """
    seen, network = environments.seen, stage.model
    context = seen.agents * environments.numbers
    wanted = (environments.numbers, environments.choices, environments.continuous, seen.image, seen.masked, context)
    one, named = len(environments.choices) == 1, stage.environments.id
    require(one or not isinstance(stage.algorithm, DQN), f"{named}: DQN chooses among options, one at a time; use PPO, or SAC")
    if path is None:
        own = {name: getattr(network, name) for name in OF_NETWORK} | {"kind": stage.kind}
        own |= {name: getattr(stage.algorithm, name) for name in OF_VALUES if isinstance(stage.algorithm, DQN)}
        require(
            not (seen.image and network.normalize),
            f"{stage.name}: bytes of an image are divided by 255, and their moments are not kept; set model.normalize=false",
        )
        layers = network.convolutions if seen.image else ()
        shape = Shape(*wanted[:3], **own, image=seen.image, convolutions=layers, masked=seen.masked, context=context)
        return learning(stage, new_policy(shape, seed, device), seed)
    policy = load_policy(path, device)
    shape = policy.network.shape
    alike = shape.kind == stage.kind and all(getattr(shape, name) == getattr(stage.algorithm, name, 0) for name in OF_VALUES)
    require(alike, f"model.path={network.path}: it was trained by another kind of algorithm; name another")
    if (shape.observation, shape.choices, shape.continuous, shape.image, shape.masked, shape.context) != wanted:
        raise SpecError(
            f"model.path={network.path}: that policy was made for {shape.observation} numbers seen, options {shape.choices} and"
            f" {shape.continuous} continuous numbers decided, image {shape.image}, masked {shape.masked} and {shape.context} "
            f"numbers of a central critic; {environments.name} has {wanted}; name another"
        )
    return learning(stage, policy, seed)


def learning(stage: Control, policy: ControlPolicy, seed: int) -> ControlPolicy:
    """The policy with what its algorithm needs to learn: targets, critics."""
    if isinstance(stage.algorithm, DQN):
        return ValuesOfOptions(policy.network, stage.algorithm)
    return SoftActor(policy.network, stage.algorithm, seed) if isinstance(stage.algorithm, SAC) else policy


def labeller_of(stage: Control, policy: ControlPolicy, learner: Learner, seed: int) -> Labeller | ReplayLabeller:
    """What turns fragments into minibatches."""
    if stage.replays:
        algorithm = stage.algorithm
        replay = Replay(algorithm.capacity, algorithm.priority)
        given: Any = (algorithm, policy, replay, stage.epochs * stage.minibatches, stage.steps, seed)
        return ReplayLabeller(*given)
    return Labeller(stage.algorithm, policy, learner, Passes(stage.epochs, stage.minibatches, seed), stage.learner.token_budget)
