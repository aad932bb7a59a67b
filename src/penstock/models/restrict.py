"""Which of a model's weights are trained, and in what type they are: done once, before critics and references are made."""

from __future__ import annotations

import torch
from transformers.modeling_layers import GradientCheckpointingLayer

from penstock.config.learner import LearnerSpec
from penstock.models.arithmetic import to_compute_type
from penstock.models.branches import critic_branch
from penstock.models.experts import again, check_balance
from penstock.models.freezing import freeze_below
from penstock.models.language_model import LanguageModel
from penstock.models.lora import add_lora


def prepare(model: LanguageModel, spec: LearnerSpec, seed: int) -> None:
    """Freeze what is not trained, add adapters and critic, and set the mode for training. A second call changes nothing."""
    if spec.router_loss:
        check_balance(model.network)
    restrict(model, spec, seed)
    add_critic(model, spec)
    model.network.eval()
    if spec.gradient_checkpointing:
        model.network.gradient_checkpointing_enable({"use_reentrant": False, "context_fn": again})
        for module in model.network.modules():  # the inside of a block stays as the generator has it, without jitter
            module.training = isinstance(module, GradientCheckpointingLayer)


def restrict(model: LanguageModel, spec: LearnerSpec, seed: int = 0) -> None:
    """Freeze what the spec does not train, add its adapters (first weights from ``seed``) and convert to the compute type.

    A second call changes nothing.

    Raises:
        ModelError: the model has fewer blocks than are to stay unfrozen, blocks that cannot be found, or no layer that an
            adapter is for; or the package of adapters is missing.
    """
    if spec.lora is not None and model.adapter is None:
        compute = torch.bfloat16 if spec.dtype == "bfloat16" else torch.float32
        model.adapter = add_lora(model.network, spec.lora, seed, compute)
    if spec.unfrozen_layers >= 0 and model.border is None:
        freeze_below(model, spec.unfrozen_layers)
    if spec.dtype != "float32":
        to_compute_type(model, spec.dtype)


def add_critic(model: LanguageModel, spec: LearnerSpec) -> None:
    """Give a restricted model the critic of the spec, unless it has it. A model folder keeps the value head of a critic but no
    trunk, so a critic with a trunk of its own begins anew."""
    if spec.critic == "none" or (model.value_head is not None and model.critic == spec.critic):
        return
    model.add_critic(spec.critic, critic_branch(model) if spec.critic == "branch" else None)
