"""Published diffusion pipelines: the network of a pipeline of diffusers is trained, all else of it is frozen. Its only home.

States are latents in float32. Text encoders read each prompt once, and the decoder makes pictures of the last states, a few at
a time. Prompts travel as UTF-8 bytes, because each encoder of a pipeline has a tokenizer of its own.

Times: a flow's is its σ, as the pipeline's scheduler spaces and shifts them. Of a pipeline that predicts noise, the training
step k has the time (k + 1) / N, so that ᾱ of a time is that of its scheduler's table, and time 0 has what the scheduler holds
for the picture itself (``set_alpha_to_one``).
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import ByT5Tokenizer
from transformers.utils.hub import cached_file

from penstock.config.denoising import Denoising
from penstock.config.learner import LearnerSpec, LoRA
from penstock.config.spec import parse, plain
from penstock.core.errors import ModelError, SpecError, first_line
from penstock.core.types import FloatArray
from penstock.models.attention import quiet_transformers
from penstock.models.diffusion.model import DenoisingModel
from penstock.models.diffusion.pipelines import FAMILIES, Conditions, flux
from penstock.models.lora import adapter_weights, inject, merged
from penstock.models.presets import DENOISER, pipeline_of
from penstock.models.text import Text

LONGEST = 2048
"""Bytes of a prompt, at most. How much of it an encoder reads is the pipeline's: 77 tokens of CLIP, 256 or 512 of T5."""
ENCODED = 128
"""Prompts whose encodings are kept."""
DECODED = 4
"""Pictures that are decoded at once."""
CONFIG = "config.json"


def _diffusers() -> Any:
    import diffusers  # that it is there is seen to as soon as a pipeline is named (models/presets.py)

    return diffusers


def prompt_bytes() -> Text:
    """A tokenizer whose tokens are the bytes of a text."""
    return Text(ByT5Tokenizer(extra_ids=0))


class Frozen:
    """All of a pipeline but the network that is trained. Copies of a model share it."""

    def __init__(self, pipeline: Any) -> None:
        self.pipeline, self.family = pipeline, FAMILIES[type(pipeline).__name__]
        self.scale: int = pipeline.vae_scale_factor
        """Pixels on a side of a latent."""
        self.settings: Mapping[str, Any] = pipeline.scheduler.config
        self.training_steps: int = self.settings["num_train_timesteps"]
        for name, part in pipeline.components.items():
            if isinstance(part, nn.Module) and name != self.family.component:
                part.requires_grad_(False).eval()
        self.signal_N = self._signals() if self.family.prediction == "noise" else torch.zeros(0)
        """ᾱ by :meth:`index`."""
        self._encoded: dict[bytes, Conditions] = {}
        self._times: dict[tuple[int, tuple[int, ...]], list[float]] = {}

    def __deepcopy__(self, memo: Any) -> Frozen:
        return self

    def _signals(self) -> Tensor:
        """Raises ModelError where the pipeline predicts something else than noise, or starts without any signal."""
        if (said := self.settings.get("prediction_type", "epsilon")) != "epsilon":
            raise ModelError(
                f'the pipeline\'s scheduler says prediction_type="{said}"; only "epsilon" and flows can be trained'
            )
        scheduler = _diffusers().DDIMScheduler.from_config(self.settings)
        found = torch.cat([scheduler.final_alpha_cumprod.reshape(1), scheduler.alphas_cumprod]).float()
        if self.settings.get("rescale_betas_zero_snr"):
            raise ModelError(
                "the pipeline's scheduler says rescale_betas_zero_snr: noise says nothing of a picture without signal"
            )
        return found

    def index(self, time_A: Tensor) -> Tensor:
        """Training steps, counted from 1, at times; 0 is the picture's. Times between two are of the later step."""
        return (time_A * self.training_steps - 1e-3).ceil().long().clamp(0, self.training_steps)

    def signal(self, time_A: Tensor) -> Tensor:
        """ᾱ at times."""
        return self.signal_N.to(time_A.device)[self.index(time_A)]

    def times(self, count: int, shape: tuple[int, ...]) -> list[float]:
        """The times of ``count`` transitions' states as the pipeline spaces them."""
        if (count, shape) not in self._times:
            self._times[count, shape] = self._spaced(count, shape)
        return self._times[count, shape]

    def _spaced(self, count: int, shape: tuple[int, ...]) -> list[float]:
        diffusers = _diffusers()
        if self.family.prediction == "velocity":
            scheduler, more = diffusers.FlowMatchEulerDiscreteScheduler.from_config(self.settings), dict[str, Any]()
            if self.settings.get("use_dynamic_shifting"):
                more["mu"] = self._shift(math.prod(size // self.family.patch for size in shape[1:]))
            if self.family.predict is flux:
                more["sigmas"] = np.linspace(1, 1 / count, count)
            scheduler.set_timesteps(count, **more)
            return [float(sigma) for sigma in scheduler.sigmas]
        scheduler = diffusers.DDIMScheduler.from_config(self.settings)
        scheduler.set_timesteps(count)
        steps = scheduler.timesteps.tolist()
        if any(first - later != self.training_steps // count for first, later in pairwise(steps)):
            raise SpecError(
                f"denoising.steps={count} does not divide the {self.training_steps} steps of a scheduler with timestep_spacing="
                f'"{scheduler.config.timestep_spacing}"; use steps that do, or "leading"'
            )
        return [*((step + 1) / self.training_steps for step in steps), 0.0]

    def _shift(self, patches: int) -> float:
        """μ of a dynamic shift: linear in the patches of a picture."""
        fewest, most = self.settings["base_image_seq_len"], self.settings["max_image_seq_len"]
        low, high = self.settings["base_shift"], self.settings["max_shift"]
        return float(low + (high - low) * (patches - fewest) / (most - fewest))

    @torch.no_grad()
    def conditions(self, prompt_AC: Tensor) -> Conditions:
        """What the network is given of prompts; each is encoded once."""
        prompts, which_A = torch.unique(prompt_AC.cpu(), dim=0, return_inverse=True)
        found = [self._condition(bytes(token - 3 for token in row if token >= 3), prompt_AC.device) for row in prompts.tolist()]
        which_A = which_A.to(prompt_AC.device)
        return {name: torch.cat([one[name] for one in found])[which_A] for name in found[0]}

    def _condition(self, prompt: bytes, device: torch.device) -> Conditions:
        if prompt not in self._encoded:
            if len(self._encoded) >= ENCODED:
                self._encoded.pop(next(iter(self._encoded)))
            self._encoded[prompt] = self._read(prompt.decode(errors="replace"), device)
        return {name: tensor.to(device) for name, tensor in self._encoded[prompt].items()}

    def _read(self, prompt: str, device: torch.device) -> Conditions:
        """The empty prompt is what the pipeline guides away from, which may be no text at all (SDXL)."""
        self.pipeline.to(device)
        more: dict[str, Any] = dict.fromkeys(self.family.prompts)
        if not self.family.two_passes:
            read, pooled, _ = self.pipeline.encode_prompt(prompt, device=device, **more)
            return {"read": read.float(), "pooled": pooled.float()}
        empty = not prompt
        more |= {"device": device, "num_images_per_prompt": 1, "do_classifier_free_guidance": empty}
        found = self.pipeline.encode_prompt(prompt, **more)[int(empty) :: 2]
        return {name: tensor.float() for name, tensor in zip(("read", "pooled"), found, strict=False)}

    def _between(self, device: torch.device) -> tuple[Any, Any]:
        """Deviation and mean of the encoder's values, by which latents are normalised."""
        said = self.pipeline.vae.config
        if said.get("latents_mean") is not None and said.get("latents_std") is not None:
            mean, deviation = (
                torch.tensor(v, device=device).reshape(1, -1, 1, 1) for v in (said.latents_mean, said.latents_std)
            )
            return deviation / said.scaling_factor, mean
        return 1 / said.scaling_factor, said.get("shift_factor") or 0.0

    def decoded(self, state_AD: Tensor) -> Tensor:
        """Latents as pictures ``[A, 3, H, W]``, values from about -1 to 1; with gradient where there is one."""
        vae, (deviation, mean) = self.pipeline.vae.to(state_AD.device), self._between(state_AD.device)
        found: Tensor = vae.decode(state_AD * deviation + mean, return_dict=False)[0]
        return found

    def encoded(self, picture_AD: Tensor) -> Tensor:
        """Pictures as latents: the middle of what the encoder says of each."""
        vae, (deviation, mean) = self.pipeline.vae.to(picture_AD.device), self._between(picture_AD.device)
        found: Tensor = (vae.encode(picture_AD).latent_dist.mode() - mean) / deviation
        return found


class Network(nn.Module):
    """A pipeline's network with the face of a denoiser: latents, times and prompts in, what it predicts out."""

    def __init__(self, inner: nn.Module, frozen: Frozen) -> None:
        super().__init__()
        self.inner: Any = inner
        self.frozen, self.guidance = frozen, 1.0

    def forward(self, state_AD: Tensor, time_A: Tensor, prompt_AC: Tensor) -> Tensor:
        return self.frozen.family.predict(self, state_AD, time_A, self.frozen.conditions(prompt_AC))


class PublishedModel(DenoisingModel):
    """The pipeline of a folder or hub name as a denoiser of latents."""

    network: Network
    adapter: Any = None
    """peft's description of its adapters, if it trains any."""

    def __init__(self, pipeline: Any, denoising: Denoising | None = None) -> None:
        frozen = Frozen(pipeline)
        inner, text = getattr(pipeline, frozen.family.component), prompt_bytes()
        if inner.config.get("time_cond_proj_dim"):
            raise ModelError("the pipeline's UNet takes guidance as an input (a consistency model), which is not known here")
        blocks = sum(len(part) for part in inner.children() if isinstance(part, nn.ModuleList))
        config = {
            "shape": [0, 0, 0], "vocab_size": len(text), "context": LONGEST, "layers": blocks,
            "prediction": frozen.family.prediction,
        }  # fmt: skip
        usual = Denoising() if frozen.family.prediction == "velocity" else Denoising(kernel="ddim", noise=1.0)
        super().__init__(Network(inner.eval(), frozen), config, text, denoising or usual)

    @property
    def frozen(self) -> Frozen:
        """What is not trained."""
        return self.network.frozen

    def draw(self, denoising: Denoising) -> None:
        """Draw so from now on.

        Raises:
            SpecError: the pipeline predicts something else, its scheduler has a shift of its own, it has no guidance, or
                cannot draw this size.
        """
        self.require_kernel(denoising)
        family, inner, pipeline = self.frozen.family, self.network.inner, self.frozen.pipeline
        if denoising.shift != 1:
            raise SpecError(f"denoising.shift={denoising.shift}: the pipeline's scheduler says its shift; leave it at 1")
        if denoising.clip:
            raise SpecError("denoising.clip is for pictures, and a pipeline's states are latents; leave it out")
        if denoising.guidance != 1 and not family.two_passes and not inner.config.guidance_embeds:
            raise SpecError(
                f"denoising.guidance={denoising.guidance}: this pipeline was distilled without guidance; set it to 1"
            )
        if denoising.negative and not family.two_passes:
            raise SpecError(
                "denoising.negative: this pipeline reads its guidance as a number, and leads away from nothing; leave it out"
            )
        side, usual = self.frozen.scale * family.patch, inner.config.sample_size if family.predict is not flux else 0
        usual = usual or pipeline.default_sample_size
        high, wide = (usual, usual) if isinstance(usual, int) else usual
        if denoising.size % side:
            raise SpecError(f"denoising.size={denoising.size}: the pipeline draws multiples of {side} pixels")
        if denoising.size:
            high = wide = denoising.size // self.frozen.scale
        self.config.shape = [pipeline.vae.config.latent_channels, high, wide]
        self.denoising, self.network.guidance = denoising, denoising.guidance
        for quiet in (False, True):
            self.times(quiet)

    def add_heads(self, heads: Mapping[str, Mapping[str, Any]]) -> None:
        """Raises SpecError: a pipeline has no heads, and no slow copy."""
        if heads:
            raise SpecError(
                f"a published pipeline has no {', '.join(heads)} head or copy; use flow_grpo or ddpo, which need none, or a "
                "denoiser from scratch"
            )

    def times(self, quiet: bool) -> list[float]:
        count = self.denoising.quiet_steps or self.denoising.steps if quiet else self.denoising.steps
        return self.frozen.times(count, self.shape)

    def signal(self, time_A: Tensor) -> Tensor:  # type: ignore[override]
        return self.frozen.signal(time_A)

    @property
    def passes(self) -> int:
        return super().passes if self.frozen.family.two_passes else 1

    @torch.no_grad()
    def encoded(self, picture_AD: Tensor) -> Tensor:
        """Raises SpecError for pictures of another size than it draws."""
        wanted = tuple(self.frozen.scale * size for size in self.shape[1:])
        if picture_AD.shape[1:] != (3, *wanted):
            raise SpecError(
                f"a picture of {list(picture_AD.shape[2:])} pixels in {picture_AD.shape[1]} colours; this pipeline learns from "
                f"{list(wanted)} in 3: resize it, or set denoising.size"
            )
        parts = picture_AD.split(DECODED)
        return torch.cat([self.frozen.encoded(part) for part in parts])

    def decoded(self, state_AD: Tensor) -> Tensor:
        return self.frozen.decoded(state_AD)

    @torch.no_grad()
    def pictures(self, states: Sequence[FloatArray]) -> Sequence[NDArray[np.uint8]]:
        found: list[NDArray[np.uint8]] = []
        for first in range(0, len(states), DECODED):
            part = torch.from_numpy(np.stack(states[first : first + DECODED])).to(self.device)
            value_NHWC = self.frozen.decoded(part).permute(0, 2, 3, 1) / 2 + 0.5
            found += list((value_NHWC.clamp(0, 1) * 255).round().to(torch.uint8).cpu().numpy())
        return found

    def adapted(self, spec: LearnerSpec, seed: int) -> LearnerSpec:
        """Adapters, by their targets or next to every linear layer of the blocks; and blocks that are computed again.

        Raises:
            SpecError: adapters with dropout or over 4 bits, or a target that no linear layer has as the end of its name.
        """
        if spec.lora is not None and self.adapter is None:
            targets = self._targets(spec.lora)
            self.adapter = inject(self.network.inner, spec.lora, seed, target_modules=targets)
        if spec.gradient_checkpointing:
            self.network.inner.enable_gradient_checkpointing()
        return replace(spec, lora=None, gradient_checkpointing=False)

    def _targets(self, lora: LoRA) -> list[str]:
        if lora.dropout or lora.quantize != "none":
            raise SpecError("lora.dropout and lora.quantize are known to language models alone; leave them out")
        linear = [name for name, part in self.network.inner.named_modules() if type(part) is nn.Linear]
        if not lora.targets:
            return [name for name in linear if "block" in name]
        for target in lora.targets:
            if not any(f".{name}".endswith(f".{target}") for name in linear):
                raise SpecError(f'lora.targets: {type(self.network.inner).__name__} has no linear layer named "{target}"')
        return [name for name in linear if f".{name}".endswith(tuple(f".{target}" for target in lora.targets))]

    def plain_weights(self) -> Iterator[tuple[str, Tensor]]:
        yield from merged(self.network, dict(self.network.named_parameters()))

    def save(self, folder: Path) -> None:
        """Write the pipeline whole, adapters merged into its network and by themselves in ``adapter``, fit for
        ``load_lora_weights``; and how it draws."""
        inner, component = self.network.inner, self.frozen.family.component
        with torch.device("meta"):
            made = type(inner).from_config(inner.config)
        made.load_state_dict(dict(merged(inner, inner.state_dict())), assign=True)
        pipeline = copy.copy(self.frozen.pipeline)
        setattr(pipeline, component, made)
        with quiet_transformers():
            pipeline.save_pretrained(folder, safe_serialization=True)
        if self.adapter is not None:
            tensors = {n.removeprefix("base_model.model."): t.cpu().contiguous() for n, t in adapter_weights(inner)}
            said = {f"{component}_lora_layers": tensors, f"{component}_lora_adapter_metadata": self.adapter.to_dict()}
            pipeline.save_lora_weights(folder / "adapter", **said)
        config = {"model_type": DENOISER, "denoising": plain(self.denoising)}
        (folder / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def pipeline_folder(path: str, place: Mapping[str, Any]) -> str | None:
    """``path``, where it is the folder or hub name of a pipeline; else None. Raises ModelError for one that is not known."""
    folder = Path(path).expanduser()
    if folder.is_dir():
        return str(folder) if pipeline_of(folder) else None
    if path.startswith((".", "/", "~")) or path.count("/") != 1:
        return None
    where = {name: value for name, value in place.items() if name == "local_files_only"}
    quiet = {f"_raise_exceptions_for_{what}": False for what in ("gated_repo", "missing_entries", "connection_errors")}
    try:
        found = cached_file(path, "model_index.json", **where, **quiet)
    except OSError:  # no such name, which the loader of models says
        return None
    return path if found is not None and pipeline_of(Path(found).parent) else None


def load_pipeline(path: str, place: Mapping[str, Any]) -> PublishedModel:
    """The pipeline of a folder or hub name.

    Raises:
        ModelError: diffusers cannot load it, or it predicts what cannot be trained here.
    """
    diffusers, folder = _diffusers(), Path(path)
    where = {name: value for name, value in place.items() if name == "local_files_only"}
    try:
        with quiet_transformers():
            diffusers.utils.logging.disable_progress_bar()
            index = diffusers.DiffusionPipeline.load_config(path, **where)
            absent = {name: None for name, said in index.items() if said == [None, None]}  # such as SD3's third encoder
            kinds = {"torch_dtype": torch.float32, "use_safetensors": True}
            pipeline = diffusers.DiffusionPipeline.from_pretrained(path, **kinds, **where, **absent)
    except Exception as error:  # of a foreign library over foreign files
        raise ModelError(f"{path}: diffusers cannot load this pipeline: {first_line(error)}") from error
    said = json.loads((folder / CONFIG).read_text()) if (folder / CONFIG).is_file() else {}
    return PublishedModel(pipeline, parse(Denoising, said["denoising"], "denoising") if "denoising" in said else None)
