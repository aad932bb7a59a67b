"""What a diffusion run trains: a denoiser with the tokenizer of its prompts and the way it draws; its folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from penstock.config.denoising import Denoising, Pictures, Prediction
from penstock.config.run import ModelSpec
from penstock.config.spec import parse, plain
from penstock.core.errors import ModelError, SpecError
from penstock.models.diffusion.denoiser import Denoiser
from penstock.models.text import Text, train_tokenizer

MODEL_TYPE = "penstock_denoiser"
"""``model_type`` in the config.json of a folder that holds one."""
WEIGHTS = "model.safetensors"
WIDTHS = {"1m": (256, 3), "3m": (448, 4), "10m": (768, 5)}
"""Width and blocks of each preset."""


class DenoisingModel(nn.Module):
    """A denoiser, its tokenizer and how it draws. ``config`` has its ``shape`` and what else its folder says."""

    def __init__(self, config: Mapping[str, Any], text: Text, denoising: Denoising) -> None:
        super().__init__()
        self.config: Any = SimpleNamespace(**config, model_type=MODEL_TYPE, num_hidden_layers=config["layers"])
        self.text, self.heads = text, nn.ModuleDict()
        of = {name: config[name] for name in ("shape", "vocab_size", "context", "width", "layers")}
        self.network = Denoiser(**of, pad=text.pad)
        self.draw(denoising)

    def draw(self, denoising: Denoising) -> None:
        """Draw so from now on. Raises SpecError where the denoiser predicts something else than that needs."""
        if denoising.prediction != self.prediction:
            raise SpecError(
                f"denoising.kernel={denoising.kernel} is for denoisers that predict {denoising.prediction}, and this one "
                f"predicts {self.prediction}; use {'flow or dance' if self.prediction == 'velocity' else 'ddim'}"
            )
        self.denoising = denoising

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
        """Raises SpecError: a denoiser has no trunk for heads."""
        if heads:
            raise SpecError(f"a denoiser has no {', '.join(heads)} head; use an algorithm without one, such as GRPO")

    def policy_weights(self) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor) of what a generator needs."""
        yield from self.network.named_parameters()

    plain_weights = policy_weights

    def save(self, folder: Path) -> None:
        """Write weights, configuration and tokenizer into a folder that is there."""
        save_file({name: tensor.contiguous() for name, tensor in self.network.state_dict().items()}, folder / WEIGHTS)
        self.text.tokenizer.save_pretrained(folder)
        config = {**vars(self.config), "shape": list(self.shape), "denoising": plain(self.denoising)}
        (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def is_denoiser(folder: Path) -> bool:
    """Whether a folder holds a denoiser."""
    file = folder / "config.json"
    return file.exists() and json.loads(file.read_text()).get("model_type") == MODEL_TYPE


def load_denoiser(folder: Path, text: Text) -> DenoisingModel:
    """The denoiser of a folder. Raises ModelError where its files do not belong together."""
    said = json.loads((folder / "config.json").read_text())
    config = {name: said[name] for name in ("shape", "vocab_size", "context", "width", "layers", "prediction")}
    model = DenoisingModel(config, text, parse(Denoising, said["denoising"], "denoising"))
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
    width, layers = WIDTHS[spec.preset]
    config = {
        "shape": list(pictures.shape), "vocab_size": len(text), "context": spec.context, "width": width,
        "layers": spec.layers or layers, "prediction": pictures.prediction,
    }  # fmt: skip
    denoising = Denoising() if pictures.prediction == "velocity" else Denoising(kernel="ddim", noise=1.0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return DenoisingModel(config, text, denoising)
