"""What samples show: the pictures that diffusion policies make, the media that other policies were shown."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from penstock.algos.denoising import PICTURE, STATES, picture_of
from penstock.core.blobs import FILM, Picture
from penstock.core.errors import RewardError
from penstock.core.types import Sample
from penstock.data.pictures import KIND, from_file, png


class Contents(Protocol):
    """The files of blobs by number (:class:`penstock.data.media.MediaStore`)."""

    def content(self, name: int) -> bytes:
        """Raises DataError where it is not here."""
        ...


class Shown(NamedTuple):
    """A medium as a file."""

    kind: str
    """Its media type."""
    content: bytes


def is_picture(sample: Sample) -> bool:
    """Whether a sample is a trajectory of a diffusion policy."""
    return PICTURE in sample.extras or STATES in sample.columns


def shown(sample: Sample, store: Contents) -> list[Shown]:
    """The picture that a sample is, or the media that it was shown. Raises RewardError for films, and where is nothing."""
    if is_picture(sample):
        return [Shown(KIND, png(picture_of(sample)))]
    if any(blob.kind == FILM for blob in sample.blobs):
        raise RewardError("found a film, which is judged by no model yet; leave films out of prompts that are judged so")
    if not sample.blobs:
        raise RewardError("found neither a picture that the sample is nor a medium that it was shown")
    return [Shown(blob.kind, store.content(blob.number)) for blob in sample.blobs]


def picture(sample: Sample, store: Contents) -> Picture:
    """The only picture of a sample, ``[H, W, 3]``. Raises RewardError where there is none, or another number."""
    if is_picture(sample):
        found = picture_of(sample)
        return found if found.shape[2] == 3 else found.repeat(3, 2)
    files = shown(sample, store)
    if len(files) != 1 or files[0].kind != KIND:
        raise RewardError(f"found {len(files)} media ({', '.join(file.kind for file in files)}), not one picture")
    decoded = from_file(files[0].content, "a picture")
    assert not isinstance(decoded, tuple), "a film has another kind"
    return decoded
