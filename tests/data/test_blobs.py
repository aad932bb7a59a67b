"""Blobs in a folder: named by what they hold, checked when they come and when they are read, bounded in all."""

from __future__ import annotations

import hashlib

import pytest

from penstock.core.blobs import LARGEST, Blob
from penstock.core.errors import DataError
from penstock.core.types import Group, Prompt, PromptKey
from penstock.data.blobs import Blobs

RED, BLUE = b"a red square", b"a blue square"


def test_a_blob_is_named_by_its_bytes():
    blob = Blob.of(RED, "image/png")
    assert blob == Blob(hashlib.blake2b(RED, digest_size=32).hexdigest(), "image/png", 12)


@pytest.mark.parametrize(
    ("name", "kind", "size", "says"),
    [
        ("../../etc/passwd", "image/png", 1, "is no name of a blob"),
        ("0" * 64, "text/html", 1, "is no medium"),
        ("0" * 64, "image/png\n", 1, "is no medium"),
        ("0" * 64, "video/mp4", LARGEST + 1, "make it smaller"),
        ("0" * 64, "video/mp4", 0, "0 bytes"),
    ],
)
def test_what_is_no_blob_is_refused(name, kind, size, says):
    with pytest.raises(DataError, match=says):
        Blob(name, kind, size)


def test_a_blob_is_kept_once_and_read_again(tmp_path):
    blobs = Blobs(tmp_path / "blobs")
    assert blobs.add(RED, "image/png") == blobs.add(RED, "image/png")
    assert blobs.read(Blob.of(RED, "image/png")) == RED
    assert [entry.name for entry in (tmp_path / "blobs").iterdir()] == [Blob.of(RED, "image/png").hash]


def test_bytes_of_another_blob_are_refused_and_not_kept(tmp_path):
    blobs, blob = Blobs(tmp_path / "blobs"), Blob.of(RED, "image/png")
    with pytest.raises(DataError, match="generator-0 gave other bytes"):
        blobs.keep(blob, BLUE, "generator-0")
    assert blob not in blobs


def test_a_damaged_file_is_refused(tmp_path):
    blobs = Blobs(tmp_path)
    blob = blobs.add(RED, "image/png")
    blobs.path(blob).write_bytes(BLUE)
    with pytest.raises(DataError, match="gave other bytes"):
        blobs.read(blob)


def test_what_is_not_here_is_named(tmp_path):
    blobs = Blobs(tmp_path)
    red, blue = blobs.add(RED, "image/png"), Blob.of(BLUE, "image/png")
    assert blobs.lacking([red, blue, blue]) == [blue]
    with pytest.raises(DataError, match=f"blob {blue.hash[:12]} .* is not in"):
        blobs.read(blue)


def test_where_there_is_no_room_the_oldest_go_that_nothing_refers_to(tmp_path):
    blobs = Blobs(tmp_path, room=30)
    needed, old = blobs.add(b"0" * 10, "image/png"), blobs.add(b"1" * 10, "image/png")
    new = Blob.of(b"2" * 15, "image/png")
    blobs.keep(new, b"2" * 15, "a role", needed={needed.hash})
    assert [needed in blobs, old in blobs, new in blobs] == [True, False, True]
    with pytest.raises(DataError, match="no room"):
        blobs.keep(Blob.of(b"3" * 20, "image/png"), b"3" * 20, "a role", needed={needed.hash, new.hash})


def test_a_group_names_the_blobs_of_its_prompt_and_samples_once():
    red = Blob.of(RED, "image/png")
    assert Group(Prompt(PromptKey("pictures", 0, 0), "what is it?", blobs=(red, red)), ()).blobs == (red,)
