"""Load and save models in Hugging Face format; safetensors only."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMultimodalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedTokenizerFast,
    modeling_utils,
)

from penstock.config.learner import Dtype
from penstock.config.media import Media
from penstock.core.errors import ModelError, first_line
from penstock.core.network import hub_is_reachable
from penstock.models.arithmetic import to_compute_type
from penstock.models.attention import eager_attention, quiet_transformers
from penstock.models.diffusion.model import DenoisingModel, is_denoiser, load_denoiser
from penstock.models.diffusion.published import load_pipeline, pipeline_folder, prompt_bytes
from penstock.models.encoder_decoder import faced
from penstock.models.folders import replaced_folder
from penstock.models.heads import is_registered
from penstock.models.language_model import Head, LanguageModel
from penstock.models.lora import merged, save_adapter
from penstock.models.media_model import MediaModel, media_text
from penstock.models.presets import pipeline_of, require_model_folder
from penstock.models.text import Text
from penstock.models.text_part import has_text_part, load_text_part

VALUE_HEAD = "value_head.safetensors"
ADAPTER_FOLDER = "adapter"
HEADS = "_heads.safetensors"
"""End of the names of files with the heads that algorithms brought; the beginning is the head's name."""
SCORE_HEAD = "score_head.safetensors"
"""The score head of an encoder-decoder; that of a decoder is among its weights."""
SAFETENSORS_TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def _check_folder(folder: Path) -> None:
    """Refuse a folder without config, without safetensors, or with pickled weights only."""
    require_model_folder(folder)
    names = [entry.name for entry in folder.iterdir()]
    if not any(name.endswith(".safetensors") for name in names):
        pickled = [name for name in names if name.endswith(PICKLES)]
        if pickled:
            raise ModelError(
                f"{folder}: weights are pickled ({pickled[0]}), and pickle can run code, so it is never read; "
                f"save the model again with save_pretrained(…, safe_serialization=True)"
            )
        raise ModelError(f"{folder}: no *.safetensors weights")


NO_CODE: Mapping[str, Any] = {"trust_remote_code": False}
"""Without it transformers asks on the terminal, or of a pipe, whether to run a checkpoint's own code."""


def _says_generic(path: str) -> bool:
    """Whether a folder's tokenizer is wholly described by tokenizer.json; AutoTokenizer may still replace its splitting rule
    by that of the model's type, so such a file is read as it is."""
    config, tokenizer = Path(path) / "tokenizer_config.json", Path(path) / "tokenizer.json"
    if not (config.exists() and tokenizer.exists()):
        return False
    return json.loads(config.read_text()).get("tokenizer_class") in ("TokenizersBackend", "PreTrainedTokenizerFast")


def _place(path: str) -> dict[str, Any]:
    """What loaders get to know: a hub name in the cache only, where the hub cannot be reached; never to run its code."""
    return {**NO_CODE} | ({"local_files_only": True} if not Path(path).is_dir() and not hub_is_reachable() else {})


def _not_loaded(path: str, what: str, error: Exception, place: Mapping[str, Any]) -> ModelError:
    if "trust_remote_code" in str(error):
        return ModelError(
            f"{path}: the {what} needs Python code that comes with the checkpoint, and such code is never run; "
            f"use a checkpoint of a type that transformers has itself"
        )
    if "local_files_only" in place:
        return ModelError(f"{path}: no such folder, the hub cannot be reached, and its cache here has no such {what}")
    return ModelError(f"{path}: the {what} cannot be loaded: {first_line(error)}")


def load_text(path: str) -> Text:
    """The tokenizer of a model folder or hub name, with the end tokens that any file of the checkpoint names.

    Raises:
        ModelError: there is none.
    """
    if Path(path).is_dir() and pipeline_of(Path(path)):
        return prompt_bytes()
    if Path(path).is_dir() and not any(
        (Path(path) / name).exists() for name in ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")
    ):
        raise ModelError(f"{path}: no tokenizer (tokenizer.json is missing); save the tokenizer into the model folder")
    place = _place(path)
    try:
        with quiet_transformers():
            kind: Any = PreTrainedTokenizerFast if _says_generic(path) else AutoTokenizer
            tokenizer = kind.from_pretrained(path, **place)
    except Exception as error:
        raise _not_loaded(path, "tokenizer", error, place) from error
    return Text(tokenizer, *_ends_and_kind(path, place))


def _ends_and_kind(path: str, place: Mapping[str, Any]) -> tuple[set[int], bool]:
    """The end tokens that configuration and generation configuration name, where there are such files, and whether the model
    is an encoder-decoder."""
    ends, encoder = set[int](), False
    where = {name: value for name, value in place.items() if name not in NO_CODE}
    for kind, options in ((AutoConfig, place), (GenerationConfig, where)):
        with quiet_transformers(), contextlib.suppress(OSError, ValueError):
            said: Any = kind.from_pretrained(path, **options)
            ends |= {int(end) for end in np.ravel(said.to_dict().get("eos_token_id") or [])}
            encoder |= bool(said.to_dict().get("is_encoder_decoder"))
    return ends, encoder


def load_model(path: str, head: Head = "lm", dtype: Dtype = "float32", media: Media | None = None) -> Any:
    """A model from a local folder or a hub name: a :class:`LanguageModel`, or a :class:`DenoisingModel`, of our
    own folders or of a pipeline of diffusers.

    A model loaded with ``head="score"`` keeps its trunk; it gets a new score head unless it has one. Whether a folder holds a
    decoder or an encoder-decoder is said by its configuration. It computes in ``dtype``. With ``media`` it reads these too;
    else, of a model that can, the text part alone is loaded.

    Raises:
        ModelError: no such folder or name, pickled weights, no tokenizer, or an architecture that is not supported.
    """
    folder = Path(path).expanduser()
    local = folder.is_dir()
    if (pipeline := pipeline_folder(path, _place(path))) is not None:
        return load_pipeline(pipeline, _place(path))
    if local:
        _check_folder(folder)
    elif path.startswith((".", "/", "~")) or path.count("/") > 1:
        raise ModelError(f"{folder.absolute()}: no such folder")
    text = load_text(str(folder) if local else path)
    if local and is_denoiser(folder):
        return load_denoiser(folder, text)
    stored = torch.bfloat16 if dtype == "bfloat16" else torch.float32
    network = _load_network(str(folder) if local else path, head, stored, text, media is not None)
    if media is not None:
        text = media_text(str(folder) if local else path, text, media, network.config, **_place(path))
    model = _made(path, network, text, head, media)
    if dtype == "mixed":
        to_compute_type(model, dtype)
    if not local:
        return model
    if (folder / VALUE_HEAD).exists():
        model.add_critic("shared")
    for name, own in _own_heads(model).items():
        if (folder / name).exists():
            own.load_state_dict(load_file(folder / name))
    for file in sorted(folder.glob(f"*{HEADS}")):
        _load_head(model, file)
    return model


def _made(path: str, network: Any, text: Text, head: Head, media: Media | None = None) -> LanguageModel:
    """A network as a language model that computes what the network does. Raises ModelError, whatever is in its way."""
    if len(text) > network.get_input_embeddings().weight.shape[0]:
        raise ModelError(
            f"{path}: the tokenizer has {len(text)} pieces but the model embeds only "
            f"{network.get_input_embeddings().weight.shape[0]}; they do not belong together"
        )
    try:
        model = MediaModel(network, text, head, media.frozen) if media is not None else faced(network, text, head)  # type: ignore[arg-type]
        model.check()
    except ModelError:
        raise
    except Exception as error:  # of an architecture that needs what ours has not
        kind = network.config.model_type
        raise ModelError(f'{path}: a model of type "{kind}" is not supported: {first_line(error)}') from error
    return model


def scores_answers(model: LanguageModel, path: str) -> bool:
    """Whether a model was loaded with the score head that it was trained with, and not a new one."""
    if model.score_head is not None:
        return (Path(path).expanduser() / SCORE_HEAD).exists()
    return any("SequenceClassification" in name for name in model.network.config.architectures or ())


def _own_heads(model: LanguageModel) -> dict[str, nn.Module]:
    """The heads that a folder has in files of their own, by the file's name."""
    heads = {VALUE_HEAD: model.value_head, SCORE_HEAD: model.score_head}
    return {name: head for name, head in heads.items() if head is not None}


def _load_head(model: LanguageModel, file: Path) -> None:
    """A head that an algorithm brought. One that nobody has registered in this process is not read: nothing can ask for it."""
    name = file.name.removesuffix(HEADS)
    if is_registered(name):
        with safe_open(file, "pt") as opened:
            settings = json.loads((opened.metadata() or {}).get("settings", "{}"))
        model.add_heads({name: settings}, used=False)
        model.heads[name].load_state_dict(load_file(file))


@dataclass(frozen=True)
class Adapter:
    """What a folder in peft's format says of low-rank adapters; ``shapes`` as :func:`weight_shapes` gives them."""

    folder: Path
    rank: int
    alpha: float
    shapes: Mapping[str, torch.Tensor]


def adapter_of(folder: Path) -> Adapter:
    """The adapters next to the model of a local folder.

    Raises:
        ModelError: there are none.
    """
    place = folder / ADAPTER_FOLDER
    try:
        said = json.loads((place / "adapter_config.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{place}: no adapters in peft's format are here ({error.strerror})") from error
    return Adapter(place, int(said["r"]), float(said["lora_alpha"]), weight_shapes(place, "adapter_model*.safetensors"))


def weight_shapes(folder: Path, files: str = "model*.safetensors") -> dict[str, torch.Tensor]:
    """Name to a tensor without memory (device ``meta``) of the shape and type of every weight in a local folder."""
    found: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob(files)):
        with safe_open(file, framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118 - not a dict
                part = weights.get_slice(name)
                found[name] = torch.empty(part.get_shape(), dtype=SAFETENSORS_TYPES[part.get_dtype()], device="meta")
    return found


def whole_shapes(folder: Path, config: Any) -> dict[str, torch.Tensor]:
    """As :func:`weight_shapes` for a model with its towers, by its own names: transformers writes files under others."""
    dtype = next(iter(weight_shapes(folder).values())).dtype
    with quiet_transformers(), torch.device("meta"):
        network: Any = AutoModelForMultimodalLM.from_config(config, dtype=dtype)
    return {name: parameter.detach() for name, parameter in network.named_parameters()}


def config_of(folder: Path) -> Any:
    """The configuration of a language model in a local folder. Raises ModelError where another kind is there."""
    if is_denoiser(folder) or pipeline_of(folder):
        raise ModelError(f"{folder}: denoisers are run by Penstock's own engine; set roles.engine=Embedded")
    return AutoConfig.from_pretrained(folder, **NO_CODE)


def _load_network(path: str, head: Head, dtype: torch.dtype, text: Text, whole: bool = False) -> Any:
    factory: Any = AutoModelForCausalLM if head == "lm" else AutoModelForSequenceClassification
    place = _place(path)
    try:
        with quiet_transformers():
            config = AutoConfig.from_pretrained(path, **place)
    except Exception as error:
        raise _not_loaded(path, "model", error, place) from error
    if head == "lm" and (classifies := [name for name in config.architectures or () if name.endswith("Classification")]):
        what = f"a classifier ({classifies[0]}) has no head that writes text, and a new one would write at random"
        raise ModelError(f"{path}: {what}; give a language model, or rewards=model:{path} if it scores answers")
    if config.is_encoder_decoder:
        factory = AutoModelForSeq2SeqLM
    elif head == "score":
        if "ForSequenceClassification" in str(config.architectures) and config.num_labels != 1:
            labels = ", ".join(map(str, config.id2label.values()))
            what = f"this is a classifier of {config.num_labels} labels ({labels:.80}), and a reward model has one score"
            raise ModelError(f"{path}: {what}; take a model with one label, or call the classifier in a reward function")
        config.num_labels = 1
        config.pad_token_id = text.pad
    if whole and has_text_part(config):
        factory = AutoModelForMultimodalLM
    load = partial(load_text_part, head=head) if has_text_part(config) and not whole else factory.from_pretrained
    try:
        with quiet_transformers(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # a new score head is the same every time
            network = load(path, config=config, dtype=dtype, use_safetensors=True, **place)
    except ModelError as error:
        raise ModelError(f'{path}: a model of type "{config.model_type}" is not supported: {error}') from error
    except Exception as error:
        raise _not_loaded(path, f'model of type "{config.model_type}"', error, place) from error
    for parameter in network.parameters():  # out of the mapped file, where the header leaves tensors at odd addresses:
        parameter.data = parameter.data.clone()  # matrix products are faster, and the same in every process, when aligned
    return network


def save_model(model: Any, folder: Path, adapted: bool = True) -> Path:
    """Write a model in Hugging Face format (safetensors), with tokenizer and value head; replaced whole or not at all.

    Adapters are merged into the model's matrices (unless ``adapted`` is false), and kept in peft's format in the folder
    ``adapter``.
    """
    with replaced_folder(folder) as made:
        model.sampler.save(made) if isinstance(model, DenoisingModel) else _write(model, made, adapted)
    return folder


@contextlib.contextmanager
def _without_wrappers() -> Iterator[None]:
    """A save by transformers looks for wrappers to take off, and imports deepspeed and all that it imports (mlflow) for that:
    seconds of each process. Our networks have none."""
    unwrap = modeling_utils.unwrap_model
    modeling_utils.unwrap_model = lambda model, recursive=False: model
    try:
        yield
    finally:
        modeling_utils.unwrap_model = unwrap


def _write(model: LanguageModel, temporary: Path, adapted: bool) -> None:
    with eager_attention(model.network), _without_wrappers():
        state = model.network.state_dict()
        if model.adapter is not None:
            state = dict(merged(model.network, state, adapted))
            save_adapter(model.network, model.adapter, temporary / ADAPTER_FOLDER)
        model.network.save_pretrained(temporary, state_dict=state, safe_serialization=True)
        model.text.save(temporary)
    for file, head in _own_heads(model).items():
        save_file(head.state_dict(), temporary / file)
    for name, head in model.heads.items():
        save_file(head.state_dict(), temporary / f"{name}{HEADS}", {"settings": json.dumps(head.settings)})
    config_file = temporary / "config.json"
    config = json.loads(config_file.read_text())
    config.pop("_attn_implementation", None)
    if len(model.text.ends) > 1:  # where every reader of the folder looks, of a reward model too
        config["eos_token_id"] = sorted(model.text.ends)
    config_file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
