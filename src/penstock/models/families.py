"""The kinds of models that runs train, and each as the policy that a learner sees."""

from __future__ import annotations

from collections.abc import Iterable
from functools import singledispatch
from typing import Any

from penstock.config.denoising import Denoising
from penstock.config.learner import Dtype
from penstock.config.media import Media
from penstock.config.run import ModelSpec
from penstock.core.algorithm import Algorithm
from penstock.core.contracts import Policy
from penstock.core.errors import ModelError, SpecError
from penstock.models.arithmetic import to_compute_type
from penstock.models.diffusion.model import DenoisingModel, build_denoiser
from penstock.models.diffusion.policy import AdapterOffDiffusion, DiffusionPolicy
from penstock.models.files import load_model
from penstock.models.language_model import Head, LanguageModel
from penstock.models.language_policy import AdapterOffPolicy, LanguagePolicy
from penstock.models.scratch import build_model

Model = LanguageModel | DenoisingModel


@singledispatch
def policy_of(model: Any, temperature: float = 1.0, share_prefix: bool = True) -> Policy:
    """A model as a policy; ``temperature`` and ``share_prefix`` are those of a language model's."""
    raise TypeError(f"{type(model).__name__} is no kind of model that a policy is made of")


@policy_of.register
def _(model: LanguageModel, temperature: float = 1.0, share_prefix: bool = True) -> Policy:
    return LanguagePolicy(model, temperature, share_prefix)


@policy_of.register
def _(model: DenoisingModel, temperature: float = 1.0, share_prefix: bool = True) -> Policy:
    return DiffusionPolicy(model)


def without_adapters(model: Any, temperature: float = 1.0) -> Policy:
    """A model as it was before its adapters, as a policy."""
    return AdapterOffDiffusion(model) if isinstance(model, DenoisingModel) else AdapterOffPolicy(model, temperature)


def language_model(path: str, head: Head = "lm", dtype: Dtype = "float32", media: Media | None = None) -> LanguageModel:
    """The language model of a folder or hub name. Raises ModelError where it holds another kind."""
    model = load_model(path, head, dtype, media)
    if not isinstance(model, LanguageModel):
        raise ModelError(f"{path}: this is a denoiser, which gives pictures; a model that reads and writes text is needed here")
    return model


def computing(model: Any, dtype: Dtype) -> Any:
    """A model that computes in a type from now on; denoisers know float32 alone, which their policy sees to."""
    if isinstance(model, LanguageModel):
        to_compute_type(model, dtype)
    return model


def drawing(model: Any, denoising: Any, algorithm: Algorithm | None = None) -> Any:
    """A model that draws as a spec says, if there is one, for an algorithm. Raises SpecError where one of them needs a
    denoiser, or one of another kind."""
    if algorithm is not None and algorithm.denoises and not isinstance(model, DenoisingModel):
        raise SpecError(f"{type(algorithm).__name__} trains denoisers, and this model writes text; use another algorithm")
    if denoising is not None and not (isinstance(model, DenoisingModel) and isinstance(denoising, Denoising)):
        raise SpecError(f"denoising={type(denoising).__name__} is for diffusion policies (Denoising); leave it out")
    if denoising is not None:
        model.draw(denoising)
    return model


def built(spec: ModelSpec, corpus: Iterable[str], seed: int, head: Head = "lm") -> Any:
    """A model from scratch, a :data:`Model`."""
    return build_denoiser(spec, corpus, seed) if spec.denoiser is not None else build_model(spec, corpus, seed, head)
