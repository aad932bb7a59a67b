"""Sizes of models by arithmetic alone (no torch): the presets, and what a config describes."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from penstock.config.media import Hearing
from penstock.config.run import ModelSpec, Run
from penstock.core.errors import ModelError, SpecError


@dataclass(frozen=True)
class Shape:
    """Dimensions of a Llama-like decoder, or of an encoder-decoder of the T5 shape."""

    width: int
    hidden: int
    layers: int
    heads: int
    key_value_heads: int
    head_width: int = 0
    vocabulary: int = 0
    tied: bool = True
    encoder_layers: int = 0
    """Layers of the encoder, if there is one; ``layers`` are then the decoder's, which have a second attention each."""
    tower: int = 0
    """Parameters of what reads media, besides :attr:`parameters`."""
    tower_learns: bool = False

    @property
    def attention_parameters(self) -> int:
        """Parameters of one attention: queries, keys, values, output."""
        head = self.head_width or self.width // self.heads
        return self.width * head * (2 * self.heads + 2 * self.key_value_heads)

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer: attention, gated feed-forward, two norms (small biases left out)."""
        return self.attention_parameters + 3 * self.width * self.hidden + 2 * self.width

    @property
    def parameters(self) -> int:
        """Parameters of the layers, the final norm and the embeddings, and of an output head that is not tied to them."""
        found = self.layers * self.layer_parameters + self.width + self.vocabulary * self.width * (1 if self.tied else 2)
        if self.encoder_layers:
            found += self.layers * (self.attention_parameters + self.width)
            found += self.encoder_layers * self.layer_parameters + self.width
        return found

    @property
    def cache_bytes_per_token(self) -> int:
        """Key-value cache of one token in float32."""
        return 2 * 4 * self.layers * self.key_value_heads * (self.head_width or self.width // self.heads)


PRESETS = {
    "1m": Shape(width=128, hidden=384, layers=4, heads=4, key_value_heads=2),
    "3m": Shape(width=256, hidden=704, layers=4, heads=4, key_value_heads=2),
    "10m": Shape(width=384, hidden=1024, layers=6, heads=6, key_value_heads=2),
}


def preset_shape(preset: str, layers: int = 0, encoder: bool = False) -> Shape:
    """A preset, with so many layers if they are given; an encoder-decoder divides the preset's between its halves."""
    shape = PRESETS[preset]
    if not encoder:
        return replace(shape, layers=layers or shape.layers)
    each = layers or shape.layers // 2
    return replace(shape, layers=each, encoder_layers=each, key_value_heads=shape.heads)


PIPELINES = ("StableDiffusionPipeline", "StableDiffusionXLPipeline", "StableDiffusion3Pipeline", "FluxPipeline")
"""Classes of diffusers whose networks can be trained."""


def pipeline_of(folder: Path) -> str | None:
    """The class of the diffusion pipeline in a folder; None where none is. Raises ModelError for one that is not known here, or
    where diffusers is missing."""
    file = folder / "model_index.json"
    if not file.is_file():
        return None
    found = json.loads(file.read_text(encoding="utf-8")).get("_class_name")
    if found not in PIPELINES:
        raise ModelError(f"{folder}: a pipeline of class {found}, which is not known here; known are {', '.join(PIPELINES)}")
    if find_spec("diffusers") is None:
        raise ModelError(f"{folder}: diffusion pipelines need the diffusers package; run: pip install penstock[diffusers]")
    return str(found)


DENOISER_WIDTHS = {"1m": (256, 3), "3m": (448, 4), "10m": (768, 5)}
"""Width and blocks of each preset's denoiser."""

DENOISER = "penstock_denoiser"
"""``model_type`` in the config.json of a folder with a denoiser."""


def draws_pictures(spec: ModelSpec, run: Run) -> bool | None:
    """Whether a stage's model is a denoiser or a diffusion pipeline; None where only a hub knows. Raises what
    :func:`pipeline_of` raises."""
    if spec.path.startswith("@"):
        return draws_pictures(next(stage for stage in run.stages if stage.name == spec.path[1:]).model, run)
    if not spec.path:
        return spec.denoiser is not None
    folder = folder_of(spec.path) or Path(spec.path)
    if folder.is_dir() and pipeline_of(folder):
        return True
    file = folder / "config.json"
    return json.loads(file.read_text(encoding="utf-8")).get("model_type") == DENOISER if file.is_file() else None


def require_drawing(stage: Any, run: Run) -> None:
    """Raises SpecError where a stage has ``denoising`` or an algorithm of pictures, and a model that writes; a hub's is looked
    at when its stage begins."""
    algorithm = getattr(stage, "algorithm", None)
    if getattr(stage, "denoising", None) is not None and draws_pictures(stage.model, run) is False:
        raise SpecError("denoising is how a diffusion policy draws, and this stage's model writes text; leave it out")
    if algorithm is not None and algorithm.denoises and draws_pictures(stage.model, run) is False:
        raise SpecError(f"{type(algorithm).__name__} trains denoisers, and this stage's model writes text; take another")


def folder_of(path: str) -> Path | None:
    """The local folder of a path, or that of a hub name in the hub's cache here; None where there is neither."""
    folder = Path(path).expanduser()
    if folder.is_dir() or path.count("/") != 1 or path.startswith((".", "/", "~")):
        return folder if folder.is_dir() else None
    from huggingface_hub import try_to_load_from_cache  # a package that only names of a hub need

    found = (try_to_load_from_cache(path, name) for name in ("config.json", "model_index.json"))
    return next((Path(file).parent for file in found if isinstance(file, str)), None)


def shape_behind(spec: ModelSpec, run: Run) -> Shape | None:
    """The shape of a stage's model; None where neither a folder nor the hub's cache has it, and of pipelines. Raises what
    :func:`shape_of` raises, of a folder."""
    if not spec.path:
        made_new = preset_shape(spec.preset, spec.layers, encoder=spec.architecture == "encoder-decoder")
        found: Shape | None = replace(made_new, vocabulary=spec.vocabulary, tower=new_tower(spec))
    elif spec.path.startswith("@"):
        found = shape_behind(next(stage for stage in run.stages if stage.name == spec.path[1:]).model, run)
    else:
        folder = folder_of(spec.path)
        try:
            found = shape_of(folder) if folder is not None and not pipeline_of(folder) else None
        except ModelError:
            if Path(spec.path).expanduser() == folder:
                raise
            found = None  # of a hub, whose models are looked at when their stage begins
    media = spec.media
    return found and replace(found, tower=found.tower if media else 0, tower_learns=media is not None and not media.frozen)


def new_tower(spec: ModelSpec) -> int:
    """Parameters of the tower of a model from scratch (``models/scratch.py``), two layers of half the decoder's width."""
    w = PRESETS[spec.preset].width // 2
    if isinstance(spec.media, Hearing):
        return 21 * w * w + (146 + 25 * spec.media.seconds) * w
    return 44 * w * w + 125 * w if spec.media else 0


def tower_in(folder: Path) -> int:
    """Parameters of what reads media in a model folder, by the names in its weights' headers."""
    return numbers_in(folder, TOWER)


def numbers_in(folder: Path, named: re.Pattern[str] | None = None) -> int:
    """Numbers in a folder's weights, of the tensors ``named`` so, by their headers; 0 where there are none."""
    return sum(math.prod(shape) for name, shape in shapes_in(folder).items() if named is None or named.search(name))


def shapes_in(folder: Path) -> dict[str, list[int]]:
    """Shapes of a folder's weights by name, from their headers. Second copies of another type (``.fp16.``) are not loaded."""
    found: dict[str, list[int]] = {}
    for file in folder.glob("*.safetensors"):
        with file.open("rb") as opened:
            head = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
        if file.name.count(".") == 1:
            found |= {name: about["shape"] for name, about in head.items() if name != "__metadata__"}
    return found


TOWER = re.compile(r"(^|\.)(visual|vision_tower|vision_model|audio_tower|multi_modal_projector|connector)\.")


def require_model_folder(folder: Path) -> None:
    """Refuse a folder without a model's configuration, adapters alone by their name. Raises ModelError."""
    if (adapters := folder / "adapter_config.json").exists():
        base = json.loads(adapters.read_text(encoding="utf-8")).get("base_model_name_or_path")
        fix = "AutoPeftModelForCausalLM.from_pretrained(FOLDER).merge_and_unload().save_pretrained(NEW)"
        raise ModelError(f"{folder}: these are low-rank adapters in peft's format for {base}, not a model; merge them: {fix}")
    if not (folder / "config.json").exists():
        raise ModelError(f"{folder}: no config.json; this is not a model folder in Hugging Face format")


def shape_of(folder: Path) -> Shape | None:
    """The shape a model folder's ``config.json`` describes; None where the part for text leaves out what its class has anyway.

    Raises:
        ModelError: no config, or one of another family of architectures.
    """
    file = folder / "config.json"
    require_model_folder(folder)
    config = json.loads(file.read_text(encoding="utf-8"))
    config |= config.get("text_config", {})
    try:
        if config.get("is_encoder_decoder"):
            return Shape(
                width=config["d_model"], hidden=config["d_ff"], heads=config["num_heads"], key_value_heads=config["num_heads"],
                layers=config.get("num_decoder_layers") or config["num_layers"], head_width=config["d_kv"],
                vocabulary=config["vocab_size"], encoder_layers=config["num_layers"],
            )  # fmt: skip
        heads = config["num_attention_heads"]
        return Shape(
            width=config["hidden_size"], hidden=config["intermediate_size"], layers=config["num_hidden_layers"], heads=heads,
            key_value_heads=config.get("num_key_value_heads") or heads, head_width=config.get("head_dim") or 0,
            vocabulary=config["vocab_size"], tied=config.get("tie_word_embeddings", True), tower=tower_in(folder),
        )  # fmt: skip
    except KeyError as error:
        if "text_config" in config:
            return None
        raise ModelError(f"{file}: no field {error}; its size cannot be computed") from error
