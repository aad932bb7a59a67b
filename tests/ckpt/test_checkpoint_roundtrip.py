"""Any state that is accepted comes back exactly: names, order, kinds, shapes, types, bytes."""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock.ckpt.store import CheckpointStore, Position
from penstock.core.contracts import State

SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)
TORCH_TYPES = st.sampled_from(
    [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.uint8, torch.int8, torch.int64, torch.bool]
)
NUMPY_TYPES = st.sampled_from(["f4", "f8", "f2", "u1", "i4", "i8", "u4", "?"])


@st.composite
def tensors(draw: Any) -> torch.Tensor:
    shape, seed = draw(SHAPES), draw(st.integers(0, 99))
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).mul(9).to(draw(TORCH_TYPES))
    return tensor.transpose(0, -1) if tensor.ndim and draw(st.booleans()) else tensor


@st.composite
def numpy_arrays(draw: Any) -> np.ndarray[Any, Any]:
    array = np.random.default_rng(draw(st.integers(0, 99))).normal(0, 9, draw(SHAPES)).round().clip(0).astype(draw(NUMPY_TYPES))
    array = np.asarray(array)
    array = array[::-1] if array.ndim and draw(st.booleans()) else array
    array.flags.writeable = draw(st.booleans())
    return array


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
ARRAY_NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=8).filter(lambda name: name != "__metadata__")
STATES = st.builds(
    State,
    st.dictionaries(ARRAY_NAMES, tensors() | numpy_arrays(), max_size=4),
    st.dictionaries(st.text(), JSON, max_size=3),
)


def assert_same(left: Any, right: Any) -> None:
    assert type(left) is type(right)
    assert left.dtype == right.dtype
    assert tuple(left.shape) == tuple(right.shape)
    if isinstance(left, torch.Tensor):
        assert torch.equal(left, right)
    else:
        assert np.array_equal(left, right)


def saved_and_loaded(states: dict[str, State]) -> dict[str, State]:
    with tempfile.TemporaryDirectory() as folder:
        CheckpointStore(folder).save(Position(0, "stage one", 3), states)
        loaded = CheckpointStore(folder).load_newest()
    assert loaded is not None
    return dict(loaded.states)


@given(st.dictionaries(st.from_regex(r"[a-z][a-z0-9_]{0,6}", fullmatch=True), STATES, max_size=2))
def test_round_trip(states: dict[str, State]) -> None:
    loaded = saved_and_loaded(states)
    assert list(loaded) == list(states)
    for holder, state in states.items():
        assert loaded[holder].values == state.values
        assert list(loaded[holder].arrays) == list(state.arrays)
        for name, array in state.arrays.items():
            assert_same(loaded[holder].arrays[name], array)


def test_arrays_that_share_memory_are_kept_apart() -> None:
    weight, numbers = torch.arange(6.0), np.arange(4)
    shared = {
        "whole": weight,
        "half": weight[:3],
        "rows": weight.view(2, 3).T,
        "same": weight,
        "tied": torch.nn.Parameter(weight),
        "numbers": numbers,
        "part": numbers[:2],
    }
    loaded = saved_and_loaded({"model": State(dict(shared), {})})
    for name, array in shared.items():
        assert_same(loaded["model"].arrays[name], array.detach() if isinstance(array, torch.Tensor) else array)


def test_loaded_arrays_are_ours_to_change(tmp_path: Any) -> None:
    store = CheckpointStore(tmp_path)
    store.save(Position(0, "s", 0), {"model": State({"t": torch.zeros(3), "n": np.zeros(3)}, {})})
    first = store.load_newest()
    assert first is not None
    first.states["model"].arrays["t"].add_(1)
    first.states["model"].arrays["n"] += 1
    second = CheckpointStore(tmp_path).load_newest()
    assert second is not None
    assert float(second.states["model"].arrays["t"].sum()) == 0
    assert float(second.states["model"].arrays["n"].sum()) == 0
