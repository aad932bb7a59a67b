"""What a diffusion run trains: a denoiser with the tokenizer of its prompts and the way it draws; its folder."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from penstock.config.denoising import Denoising, Pictures, Prediction
from penstock.config.run import ModelSpec
from penstock.config.spec import parse, plain
from penstock.core.errors import ModelError, SpecError
from penstock.core.types import FloatArray
from penstock.models.diffusion import kernels
from penstock.models.diffusion.denoiser import Denoiser
from penstock.models.presets import DENOISER, DENOISER_WIDTHS
from penstock.models.text import Text, train_tokenizer

WEIGHTS = "model.safetensors"


class DenoisingModel(nn.Module):
    """A denoiser, its tokenizer and how it draws. ``config`` has its ``shape`` and what else its folder says; ``network``
    predicts from states ``[A, *shape]``, times ``[A]`` and prompts ``[A, C]``."""

    def __init__(self, network: nn.Module, config: Mapping[str, Any], text: Text, denoising: Denoising) -> None:
        super().__init__()
        self.config: Any = SimpleNamespace(**config, model_type=DENOISER, num_hidden_layers=config["layers"])
        self.text, self.heads, self.network = text, nn.ModuleDict(), network
        self.draw(denoising)

    def draw(self, denoising: Denoising) -> None:
        """Draw so from now on. Raises SpecError where the denoiser predicts something else than that needs, or has not what it
        names."""
        self.require_kernel(denoising)
        if denoising.size:
            raise SpecError(f"denoising.size={denoising.size}: this denoiser draws {self.shape[1:]} alone; leave it at 0")
        self.denoising = denoising

    def require_kernel(self, denoising: Denoising) -> None:
        """Raises SpecError where it is for another prediction."""
        if denoising.prediction != self.prediction:
            raise SpecError(
                f"denoising.kernel={denoising.kernel} is for denoisers that predict {denoising.prediction}, and this one "
                f"predicts {self.prediction}; use {'flow or dance' if self.prediction == 'velocity' else 'ddim'}"
            )

    def times(self, quiet: bool) -> list[float]:
        """The times of a trajectory's states, from 1 (all noise) to 0 (none)."""
        return self.denoising.times(quiet)

    signal = staticmethod(kernels.signal)
    """ᾱ at times, where noise is predicted."""

    @property
    def passes(self) -> int:
        """Passes through the network that one prediction takes."""
        return 1 if self.denoising.guidance == 1 else 2

    def prompts(self, text: str, count: int, width: int = 1) -> Tensor:
        """A prompt, such as the empty one, ``[count, width or more]``."""
        tokens = self.text.prompt(text)
        filled = [*tokens, *[self.text.pad] * (width - len(tokens))]
        return torch.tensor(filled, dtype=torch.int64, device=self.device).expand(count, -1)

    def predicted(self, state_AD: Tensor, time_A: Tensor, prompt_AC: Tensor) -> Tensor:
        """What the network predicts for a prompt, guided away from what it predicts for none, or for the negative one (arXiv
        2207.12598)."""
        given_AD: Tensor = self.network(state_AD, time_A, prompt_AC)
        if self.passes == 1:
            return given_AD
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.denoising.guidance_gradient):
            free_AD = self.network(state_AD, time_A, self.prompts(self.denoising.negative, len(prompt_AC)))
        return free_AD + self.denoising.guidance * (given_AD - free_AD)

    def encoded(self, picture_AD: Tensor) -> Tensor:
        """Pictures (values from -1 to 1) as states."""
        return picture_AD

    def decoded(self, state_AD: Tensor) -> Tensor:
        """States as pictures, with gradient where there is one."""
        return state_AD

    def pictures(self, states: Sequence[FloatArray]) -> Sequence[NDArray[np.uint8] | None]:
        """The picture of each last state, uint8 ``[H, W, C]``; None where the state is the picture."""
        return [None] * len(states)

    def adapted(self, spec: Any, seed: int) -> Any:
        """Take what a learner's spec asks of this kind of denoiser alone; gives what is left of it."""
        return spec

    @property
    def prediction(self) -> Prediction:
        found: Prediction = self.config.prediction
        return found

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a picture: channels, height, width."""
        return tuple(self.config.shape)

    @property
    def context(self) -> int:
        """Longest prompt in tokens, and one more, which nobody generates."""
        return int(self.config.context)

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    def add_heads(self, heads: Mapping[str, Mapping[str, Any]]) -> None:
        """Raises SpecError: a denoiser has no trunk for heads. It may have a slow copy, if it predicts velocities."""
        if others := ", ".join(name for name in heads if name != SLOW):
            raise SpecError(f"a denoiser has no {others} head; use an algorithm without one, such as GRPO")
        if heads and self.prediction != "velocity":
            raise SpecError(
                f"DiffusionNFT contrasts velocities, and this denoiser predicts {self.prediction}; train one with "
                'denoiser.prediction="velocity", or use ddpo'
            )
        for name, settings in heads.items():
            self.heads[name] = SlowCopy(self, **settings).to(self.device)

    @property
    def slow(self) -> SlowCopy | None:
        """The copy that draws in its place, if an algorithm asked for one."""
        return self.heads[SLOW] if SLOW in self.heads else None  # type: ignore[return-value]  # noqa: SIM401

    @property
    def sampler(self) -> DenoisingModel:
        """What draws, and is published, evaluated and saved: its slow copy, or itself."""
        found: DenoisingModel = self.slow.model if self.slow is not None else self
        return found

    def policy_weights(self) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor) of what a generator needs."""
        yield from self.network.named_parameters()

    def plain_weights(self) -> Iterator[tuple[str, Tensor]]:
        """:meth:`policy_weights` of the model without adapters, which are merged into its matrices."""
        yield from self.policy_weights()

    def changed(self) -> None:
        """Weights have changed; nothing that was computed of them alone is kept here."""

    def save(self, folder: Path) -> None:
        """Write weights, configuration and tokenizer into a folder that is there."""
        save_file({name: tensor.contiguous() for name, tensor in self.network.state_dict().items()}, folder / WEIGHTS)
        self.text.tokenizer.save_pretrained(folder)
        config = {**vars(self.config), "shape": list(self.shape), "denoising": plain(self.denoising)}
        (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def is_denoiser(folder: Path) -> bool:
    """Whether a folder holds a denoiser."""
    file = folder / "config.json"
    return file.exists() and json.loads(file.read_text()).get("model_type") == DENOISER


def load_denoiser(folder: Path, text: Text) -> DenoisingModel:
    """The denoiser of a folder. Raises ModelError where its files do not belong together."""
    said = json.loads((folder / "config.json").read_text())
    config = {name: said[name] for name in ("shape", "vocab_size", "context", "width", "layers", "prediction")}
    model = _made(config, text, parse(Denoising, said["denoising"], "denoising"))
    try:
        model.network.load_state_dict(load_file(folder / WEIGHTS))
    except (RuntimeError, OSError) as error:
        raise ModelError(f"{folder}: {WEIGHTS} does not fit config.json: {str(error).splitlines()[-1].strip()}") from error
    return model


def build_denoiser(spec: ModelSpec, corpus: Iterable[str], seed: int) -> DenoisingModel:
    """A denoiser of ``spec.preset`` with random weights (a pure function of ``seed``) and a tokenizer fitted to ``corpus``."""
    pictures = spec.denoiser
    assert isinstance(pictures, Pictures)
    text = train_tokenizer(corpus, spec.vocabulary)
    width, layers = DENOISER_WIDTHS[spec.preset]
    config = {
        "shape": list(pictures.shape), "vocab_size": len(text), "context": spec.context, "width": width,
        "layers": spec.layers or layers, "prediction": pictures.prediction,
    }  # fmt: skip
    denoising = Denoising() if pictures.prediction == "velocity" else Denoising(kernel="ddim", noise=1.0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _made(config, text, denoising)


def _made(config: Mapping[str, Any], text: Text, denoising: Denoising) -> DenoisingModel:
    of = {name: config[name] for name in ("shape", "vocab_size", "context", "width", "layers")}
    return DenoisingModel(Denoiser(**of, pad=text.pad), config, text, denoising)


SLOW = "slow"
"""Name of the copy among a denoiser's heads."""


class SlowCopy(nn.Module):
    """DiffusionNFT's old policy: a copy that draws, and follows its model after every ``every``-th optimizer step. At its n-th
    move (from 0) it keeps the share ``min(rise · n, most)`` of itself, so that the first ones make it the model."""

    def __init__(self, model: Any, rise: float, most: float, every: int) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.rise, self.most, self.every = rise, most, every

    @torch.no_grad()
    def follow(self, updates: int, model: Any) -> None:
        """Move towards the model, of which ``updates`` optimizer steps have been taken."""
        if updates % self.every:
            return
        kept = min(self.rise * (updates // self.every - 1), self.most)
        for (_, slow), (_, fast) in zip(self.weights(), model.plain_weights(), strict=True):
            slow.lerp_(fast.to(slow.dtype), 1 - kept)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor) of the copy, for generators and checkpoints."""
        yield from ((name, tensor.detach()) for name, tensor in self.model.policy_weights())
