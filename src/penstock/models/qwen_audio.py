"""How Qwen2-Audio (arXiv:2407.10759) reads sounds: Whisper's mel features, two of which become a frame, two frames a token."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import WhisperFeatureExtractor

from penstock.core.blobs import Sound
from penstock.core.errors import DataError
from penstock.core.types import FloatArray
from penstock.models.media import Medium, loaded
from penstock.models.text import Text

TYPES = ("qwen2_audio",)
AROUND = ("<|audio_bos|>", "<|audio_eos|>")
"""What Qwen2-Audio's chat template writes around a sound."""


class QwenAudio:
    """Implements :class:`penstock.models.media.Processor`.

    Args:
        extractor: transformers' of Whisper's features; sounds are brought to its rate.
        config: the model's.
    """

    kinds = ("audio",)
    mrope = mutual = False

    def __init__(self, extractor: Any, config: Any) -> None:
        self.extractor, self.config = extractor, config
        self.pads: Mapping[str, int] = {"audio": config.audio_token_id}
        self.forbidden = frozenset(self.pads.values())

    @staticmethod
    def load(path: str, hearing: Any, config: Any, **place: Any) -> QwenAudio:
        """Of a model folder or hub name. Raises ModelError where it says nothing of sounds."""
        return QwenAudio(loaded(WhisperFeatureExtractor, path, place), config)

    @property
    def settings(self) -> str:
        return str(self.extractor.to_json_string())

    def read(self, medium: Sound, text: Text) -> Medium:
        """The features of a sound, filled up with silence to the length that the tower reads, which does not listen there.

        Raises:
            ValueError: it is longer than that, or too short for a token.
        """
        rate, longest = int(self.extractor.sampling_rate), int(self.extractor.n_samples)
        seconds, most = len(medium.samples_S) / medium.rate, longest / rate
        if seconds > most:  # before it takes the memory of a sound at the model's rate
            raise ValueError(f"it lasts {seconds:.2f} s, and the model hears {most:.2f} s; cut it")
        samples_S = resampled(medium.samples_S, medium.rate, rate)[:longest]
        made = self.extractor(
            samples_S, sampling_rate=rate, padding="max_length", return_attention_mask=True, return_tensors="np"
        )
        heard = torch.from_numpy(np.asarray(made["attention_mask"], np.int64))
        parts = ((int(heard.sum()) - 1) // 2 + 1) // 2
        if parts < 1:
            raise ValueError(f"it lasts {len(samples_S) / rate:.3f} s, too short for one token")
        values = torch.from_numpy(np.asarray(made["input_features"], np.float32))
        start, end = (text.encode(mark) for mark in AROUND)
        tokens = (*start, *[self.pads["audio"]] * parts, *end)
        return Medium({"input_features": values, "feature_attention_mask": heard}, tokens, parts)

    def towers(self, network: Any) -> Sequence[nn.Module]:
        return [network.model.audio_tower, network.model.multi_modal_projector]

    def decoder(self, network: Any) -> Any:
        return network.model.language_model

    def features(self, network: Any, media: Sequence[Medium]) -> list[Tensor]:
        """Sounds by the tower, whose frames attend to those of their own sound that are not filled up."""
        tower, device = network.model.audio_tower, network.device
        values = torch.cat([medium.inputs["input_features"] for medium in media]).to(device, network.dtype)
        heard = torch.cat([medium.inputs["feature_attention_mask"] for medium in media]).to(device)
        length_B = (heard.sum(-1) - 1) // 2 + 1
        frames = (values.shape[-1] - 1) // 2 + 1
        mask = (torch.arange(frames, device=device) < length_B[:, None])[:, None, None]
        hidden = tower(values, attention_mask=mask.expand(-1, 1, frames, -1)).last_hidden_state
        made = network.model.multi_modal_projector(hidden)
        return [one[: medium.parts] for one, medium in zip(made, media, strict=True)]

    def arguments(self, media: Sequence[Medium], tokens_BT: Tensor) -> dict[str, Any]:
        names = dict.fromkeys(name for medium in media for name in medium.inputs)
        return {name: torch.cat([medium.inputs[name] for medium in media]) for name in names}

    def examples(self) -> list[Any]:
        """A rising tone that is a little more than half as long as the longest sound."""
        rate, longest = int(self.extractor.sampling_rate), int(self.extractor.n_samples)
        time_S = np.arange(longest * 5 // 9) / rate
        return [Sound(np.sin(2 * np.pi * (200 + 300 * time_S) * time_S).astype(np.float32) * 0.5, rate)]

    def save(self, folder: Path) -> None:
        self.extractor.save_pretrained(folder)


def resampled(samples_S: FloatArray, rate: int, wanted: int) -> FloatArray:
    """A sound at another rate, by scipy's polyphase filter (Kaiser window, beta 5). Raises DataError where scipy is missing."""
    if rate == wanted:
        return samples_S
    try:
        from scipy.signal import resample_poly
    except ImportError as error:
        raise DataError(
            f"a sound of {rate} samples a second is brought to {wanted} by scipy: pip install 'penstock[media]'"
        ) from error
    common = math.gcd(rate, wanted)
    return np.asarray(resample_poly(samples_S, wanted // common, rate // common), np.float32)
