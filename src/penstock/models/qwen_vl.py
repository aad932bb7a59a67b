"""How models of the Qwen-VL kind read pictures and films: patches over pairs of frames, positions in three dimensions.

Qwen2-VL (arXiv:2409.12191) counts pairs of frames, Qwen2.5-VL (arXiv:2502.13923) the time that passes, and Qwen3-VL writes
the time before each pair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import Qwen2VLImageProcessorPil

from penstock.config.media import Vision
from penstock.core.blobs import Film, Picture
from penstock.models.media import Medium, loaded
from penstock.models.text import Text

TYPES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")


class QwenVL:
    """Implements :class:`penstock.models.media.Processor`.

    Args:
        processor: of transformers' for the pictures of these models; frames of films are made smaller as pictures are.
        config: the model's.
    """

    kinds = ("image", "video")
    mrope, mutual = True, False

    def __init__(self, processor: Any, vision: Vision, config: Any) -> None:
        if vision.pixels:
            size = dict(processor.size)
            processor.size = {**size, "longest_edge": vision.pixels, "shortest_edge": min(size["shortest_edge"], vision.pixels)}
        self.processor, self.config = processor, config
        self.merge, self.pair = int(processor.merge_size), int(processor.temporal_patch_size)
        self.pads: Mapping[str, int] = {"image": config.image_token_id, "video": config.video_token_id}
        self.forbidden = frozenset(self.pads.values())
        self.tells_time = config.model_type == "qwen3_vl"
        self.speed = config.vision_config.tokens_per_second if config.model_type == "qwen2_5_vl" else 0.0
        """By how much positions grow in a second of film; 0: by one a pair of frames."""

    @staticmethod
    def load(path: str, vision: Vision, config: Any, **place: Any) -> QwenVL:
        """Of a model folder or hub name. Raises ModelError where it says nothing of pictures."""
        return QwenVL(loaded(Qwen2VLImageProcessorPil, path, place), vision, config)

    @property
    def settings(self) -> str:
        return str(self.processor.to_json_string())

    def read(self, medium: Picture | Film, text: Text) -> Medium:
        """A picture is one block of patches; a film, one over all its frames, or of Qwen3-VL one a pair of them."""
        start, end = self.config.vision_start_token_id, self.config.vision_end_token_id
        if not isinstance(medium, Film):
            values_PD, height, width = self._patches(medium)
            grid = 1, height // self.merge, width // self.merge
            inputs = {"pixel_values": values_PD, "image_grid_thw": torch.tensor([[1, height, width]])}
            parts = grid[1] * grid[2]
            return Medium(inputs, (start, *[self.pads["image"]] * parts, end), parts, grid)
        values_PD, (times, height, width) = self._film(medium)
        inputs = {"pixel_values_videos": values_PD, "video_grid_thw": torch.tensor([[times, height, width]])}
        block = height * width // self.merge**2
        shape, pad = (height // self.merge, width // self.merge), self.pads["video"]
        if self.tells_time:
            tokens: list[int] = []
            for time in range(times):  # the middle of each pair, the last frame once more where they are odd
                last = len(medium.frames_FHWC) - 1
                seconds = sum(min(time * self.pair + frame, last) for frame in (0, self.pair - 1)) / 2 / medium.rate
                tokens += [*text.encode(f"<{seconds:.1f} seconds>"), start, *[pad] * block, end]
            return Medium(inputs, tuple(tokens), times * block, (1, *shape))
        pace = 1.0
        if self.speed:
            pace = self.speed * self.pair / medium.rate
            inputs["second_per_grid_ts"] = torch.tensor([self.pair / medium.rate])
        return Medium(inputs, (start, *[pad] * (times * block), end), times * block, (times, *shape), pace)

    def _patches(self, pixels_HWC: Picture) -> tuple[Tensor, int, int]:
        made = self.processor(images=[pixels_HWC], return_tensors="np", input_data_format="channels_last")
        _, height, width = (int(count) for count in made["image_grid_thw"][0])
        return torch.from_numpy(np.ascontiguousarray(made["pixel_values"], np.float32)), height, width

    def _film(self, film: Film) -> tuple[Tensor, tuple[int, int, int]]:
        """Patches ``[P, D]`` of pairs of frames. A picture's are those of two equal frames, so a pair has one half of each;
        the last frame of an odd number is taken twice."""
        frames = list(film.frames_FHWC)
        frames += frames[-1:] * (-len(frames) % self.pair)
        made = [self._patches(frame) for frame in frames]
        _, height, width = made[0]
        side = int(self.processor.patch_size) ** 2
        halves = torch.stack([values_PD.reshape(len(values_PD), -1, self.pair, side)[:, :, 0] for values_PD, _, _ in made])
        times, patches = len(frames) // self.pair, height * width
        values_PD = halves.reshape(times, self.pair, patches, -1, side).permute(0, 2, 3, 1, 4).reshape(times * patches, -1)
        return values_PD.contiguous(), (times, height, width)

    def towers(self, network: Any) -> Sequence[nn.Module]:
        return [network.model.visual]

    def decoder(self, network: Any) -> Any:
        return network.model.language_model

    def features(self, network: Any, media: Sequence[Medium]) -> list[Tensor]:
        inputs = {name: torch.cat([medium.inputs[name] for medium in media]) for name in media[0].inputs}
        values, grids = (inputs[name] for name in media[0].inputs if name != "second_per_grid_ts")
        tower = network.model.visual
        made = network.model.get_image_features(values.to(tower.device, tower.dtype), grids.to(tower.device), return_dict=True)
        counts = [len(part) for part in made.pooler_output]
        deep = made.get("deepstack_features") or ()  # of older transformers one tensor for all media
        layers = [made.pooler_output, *(one.split(counts) if isinstance(one, Tensor) else one for one in deep)]
        return [torch.cat(parts, -1) for parts in zip(*layers, strict=True)]

    def arguments(self, media: Sequence[Medium], tokens_BT: Tensor) -> dict[str, Any]:
        kinds = (tokens_BT == self.pads["image"]).int() + 2 * (tokens_BT == self.pads["video"]).int()
        names = dict.fromkeys(name for medium in media for name in medium.inputs)
        return {"mm_token_type_ids": kinds} | {
            name: torch.cat([medium.inputs[name] for medium in media if name in medium.inputs]) for name in names
        }

    def examples(self) -> list[Any]:
        """A picture of four tokens a side, and a film of a pair of frames a second (older transformers round paces down)."""
        side = 4 * self.merge * int(self.processor.patch_size)
        noise = noise_of(2 * self.pair + 1, side)
        return [noise[0], Film(noise[1:], float(self.pair))]

    def save(self, folder: Path) -> None:
        self.processor.save_pretrained(folder)


def noise_of(count: int, side: int) -> Any:
    """Pictures ``[count, side, side, 3]`` of bytes that look random and are the same everywhere."""
    ramp = np.arange(count * side * side * 3, dtype=np.uint64) * np.uint64(2654435761) >> np.uint64(8)
    return (ramp % np.uint64(256)).astype(np.uint8).reshape(count, side, side, 3)
