"""Channels by name: each kind carries weights from its publisher to its subscriber."""

import pytest

from penstock.core.errors import SpecError
from penstock.weights.channels import channel
from weight_examples import Board, Source


def test_an_unknown_channel_names_those_there_are(tmp_path):
    with pytest.raises(SpecError, match='no weight channel "pigeon"; use one of: shared memory, disk, process group'):
        channel("pigeon").subscriber(tmp_path, "generator-0")


def test_an_unknown_type_of_transport_names_those_there_are(tmp_path):
    with pytest.raises(SpecError, match='weights cannot travel as "float7"'):
        channel("disk").publisher(Source(), tmp_path / "run", Board().post, 0, dtype="float7")
