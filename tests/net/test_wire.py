"""Frames: what travels comes back the same, what may not is refused by name, and garbage is never more than an error."""

from __future__ import annotations

import dataclasses
import enum
import math
import struct
import subprocess
import sys
from pathlib import PurePath
from typing import Any, NamedTuple

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from penstock.core.blobs import Blob
from penstock.core.errors import WireError
from penstock.core.types import Group, Prompt, PromptKey, Request, Sample, SampleKey, Sampling
from penstock.net import wire
from penstock.net.group_table import group_of, table_of

KEY = PromptKey("gsm8k", 2, 17)


def read(frame: bytes, peer: str = "generator 3") -> Any:
    """The value of a whole frame, as a connection reads it."""
    header, body = wire.lengths(frame[: wire.PRELUDE.size], peer)
    rest = bytearray(frame[wire.PRELUDE.size :])
    return wire.unpack(rest[:header], rest[header : header + body], peer)


def there_and_back(value: Any) -> Any:
    return read(b"".join(wire.pack(value)))


def same(left: Any, right: Any) -> bool:
    """Equality that also compares types, NaN, the sign of zero, dtypes and shapes."""
    if type(left) is not type(right):
        return False
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    if isinstance(left, float):
        return struct.pack("d", left) == struct.pack("d", right)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(value, right[name]) for name, value in left.items())
    if dataclasses.is_dataclass(left):
        return all(same(getattr(left, f.name), getattr(right, f.name)) for f in dataclasses.fields(left))
    return left == right


any_array = st.sampled_from(wire.DTYPES).flatmap(lambda name: arrays.arrays(name, arrays.array_shapes(min_dims=0, min_side=0)))
text = st.text(st.characters(exclude_categories=()), max_size=8)  # lone surrogates too: tokenizers make them
scalars = st.none() | st.booleans() | st.integers() | st.floats() | text | st.binary(max_size=8)
keys = text | st.integers() | st.tuples(text, st.integers()) | st.just(KEY)
values = st.recursive(
    scalars | any_array,
    lambda inner: (
        st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple) | st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=12,
)


@given(values)
def test_plain_values_and_arrays_come_back_the_same(value: Any) -> None:
    assert same(there_and_back(value), value)


@st.composite
def groups(draw: st.DrawFn) -> Group:
    def sample(number: int) -> Sample:
        length = draw(st.integers(0, 5))

        def column(dtype: str) -> np.ndarray:
            return draw(arrays.arrays(dtype, length))

        names = draw(st.sampled_from(["", "a", "ab", "b"]))
        return Sample(
            SampleKey(draw(st.sampled_from([KEY, KEY, KEY._replace(ordinal=9)])), number),
            {name: draw(arrays.arrays(draw(st.sampled_from(["<f4", "<i2"])), (length, draw(steps)))) for name in names},
            *(column(dtype) for dtype in ("|b1", "<f4", "<i4")),
            finish=draw(st.sampled_from(["stop", "length", "abort", "error"])),
            text=draw(text),
            reward_T=draw(st.none() | arrays.arrays("<f4", length)),
            error=draw(st.none() | text),
            extras=draw(st.dictionaries(text, values, max_size=2)),
            blobs=tuple(draw(st.lists(st.just(Blob("0" * 64, "image/png", 3)), max_size=2))),
        )

    steps = st.sampled_from([2, 2, 0, 3])
    prompt = Prompt(
        KEY, draw(text), ({"role": "user", "content": draw(text)},), draw(st.dictionaries(text, values, max_size=2))
    )
    return Group(prompt, tuple(sample(number) for number in range(draw(st.integers(0, 3)))))


@given(groups())
def test_groups_come_back_the_same(group: Group) -> None:
    assert same(there_and_back(group), group)


def test_a_request_comes_back_with_the_sample_it_resumes() -> None:
    drawn = Sample(
        SampleKey(KEY, 1), {"tokens_T": np.ones(3, "<i4")}, *(np.ones(3, d) for d in ("|b1", "<f4", "<i4")), finish="abort"
    )
    request = Request(SampleKey(KEY, 1), np.arange(4, dtype=np.int32), Sampling(temperature=0.5, stop=("\n",)), drawn)
    assert same(there_and_back(request), request)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24).reshape(2, 3, 4).transpose(2, 0, 1),
        np.arange(10)[::-3],
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.broadcast_to(np.float32(2), (3, 2)),
        np.zeros((0, 7), np.float16),
        np.array(5, np.int8),
        np.array([math.nan, math.inf, -math.inf, -0.0]),
        np.array([True, False, True]),
        np.arange(wire.SMALL * 3, dtype=np.int32)[::2],
    ],
    ids=["transposed", "reversed", "fortran", "broadcast", "empty", "scalar", "not finite", "mask", "large with gaps"],
)
def test_arrays_of_any_layout_come_back_with_equal_bytes(array: np.ndarray) -> None:
    assert same(there_and_back(array), array)


def test_arrays_of_every_size_keep_their_place_in_the_body() -> None:
    sent = [
        np.full(size, size % 100, dtype)
        for size in (1, 3, wire.SMALL + 1, 5, wire.SMALL * 2)
        for dtype in ("|u1", "<f8", "<i2")
    ]
    assert same(there_and_back(sent), sent)


def test_received_arrays_are_aligned_and_writable() -> None:
    _, received = there_and_back([np.zeros(3, np.uint8), np.arange(4, dtype=np.float64)])
    received += 1
    assert received.flags.aligned
    assert received.tolist() == [1, 2, 3, 4]


@dataclasses.dataclass(frozen=True)
class Unfit:
    """Its constructor refuses what it may become later."""

    needs: frozenset[str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "needs", self.needs | {"more"})


def test_between_ranks_dataclasses_and_functions_of_the_program_travel_by_name() -> None:
    sent = [Unfit(frozenset({"a"})), read, frozenset({"x", "y"})]
    frame = b"".join(wire.pack(sent, importable=True))
    header, _ = wire.lengths(frame[: wire.PRELUDE.size], "rank 1")
    rest = frame[wire.PRELUDE.size :]
    assert wire.unpack(rest[:header], rest[header:], "rank 1", importable=True) == sent
    with pytest.raises(WireError, match="nothing is registered"):
        wire.unpack(rest[:header], rest[header:], "generator 3")


@pytest.mark.parametrize(
    "address",
    ["os:system", "subprocess:check_output", "subprocess:Popen", "antigravity:geohash",
     "penstock.net.wire:importlib.import_module",
     "penstock.net.wire:DTYPES", "penstock.net.wire:is_dataclass", "penstock.net.wire:WireError"],
)  # fmt: skip
@pytest.mark.parametrize("code", [wire._FUNCTION, wire._RECORD])
def test_a_frame_names_nothing_but_dataclasses_and_functions_where_they_are_defined(address: str, code: int) -> None:
    value = [msgpack.ExtType(code, address.encode()), {}]
    header = msgpack.packb(value)
    with pytest.raises(WireError):
        wire.unpack(header, b"", "rank 1", importable=True)
    assert "antigravity" not in sys.modules


def test_what_a_rank_cannot_import_is_refused() -> None:
    with pytest.raises(WireError, match="define it in a module"):
        wire.pack(lambda: None, importable=True)


def test_a_large_array_is_sent_from_where_it_lies() -> None:
    array = np.zeros(wire.SMALL, np.float32)
    assert any(np.shares_memory(np.frombuffer(buffer, np.uint8), array) for buffer in wire.pack([array]) if len(buffer))


@pytest.mark.parametrize(
    ("value", "number"),
    [(np.float32(0.5), 0.5), (np.int64(-3), -3), (np.bool_(True), True), (np.str_("a"), "a"), (np.float16(2), 2.0)],
)
def test_numpy_scalars_become_numbers(value: Any, number: Any) -> None:
    assert same(there_and_back([value]), [number])


def test_integers_of_any_size_travel() -> None:
    sent = [2**64, -(2**63) - 1, 2**200, -(2**200), 2**63, 255, -256]
    assert same(there_and_back(sent), sent)


class Colour(enum.Enum):
    RED = 1


class Unregistered(NamedTuple):
    name: str


class Text(str):
    """A text of its own kind."""


class Derived(Sampling):
    """Not the noun it derives from."""


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (Unregistered("x"), "Unregistered"),
        (Colour.RED, "Colour"),
        (Text("x"), "Text"),
        (Derived(), "Derived"),
        (PurePath("x"), "PurePosixPath"),
        ({1, 2}, "set"),
        (1j, "complex"),
        (np.complex64(1), "complex64"),
        (np.longdouble(1), "longdouble"),
        (np.datetime64("2020-01-01"), "datetime64"),
        (np.array(["a"]), "<U1"),
        (np.array([object()]), "object"),
        (np.array([1], ">i4"), ">i4"),
        (np.ma.masked_array([1]), "MaskedArray"),
        (print, "builtin_function_or_method"),
    ],
)
def test_what_may_not_travel_is_refused_by_name(value: Any, named: str) -> None:
    with pytest.raises(WireError, match=named):
        wire.pack({"columns": [value]})


def test_a_value_that_holds_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(WireError, match="cannot travel"):
        wire.pack(loop)


def test_a_message_above_the_bounds_is_refused_where_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_HEADER", 1000)
    with pytest.raises(WireError, match="send bytes and long lists as numpy arrays"):
        wire.pack(bytes(wire.MAX_HEADER))
    with pytest.raises(WireError, match="in several messages"):
        wire.pack(np.broadcast_to(np.uint8(0), wire.MAX_BODY + 1))  # takes no memory


def test_an_announcement_above_the_bounds_is_refused_before_it_is_read() -> None:
    for header, body in ((wire.MAX_HEADER + 1, 0), (0, wire.MAX_BODY + 1), (2**32 - 1, 2**64 - 1)):
        with pytest.raises(WireError, match="generator 3 announced"):
            wire.lengths(wire.PRELUDE.pack(wire.MAGIC, header, body), "generator 3")


def test_another_version_of_the_format_is_refused() -> None:
    other = wire.MAGIC[:3] + bytes([wire.MAGIC[3] + 1])
    with pytest.raises(WireError, match="this version of Penstock"):
        wire.lengths(wire.PRELUDE.pack(other, 1, 0), "generator 3")


def outcome(frame: bytes) -> Any:
    """The value of a frame, or the error that names who sent it; any other error fails the test."""
    try:
        return read(frame)
    except WireError as error:
        return error if "generator 3" in str(error) else None


@given(st.binary(max_size=64))
def test_random_bytes_are_no_frame(garbage: bytes) -> None:
    assert isinstance(outcome(garbage), WireError)


@given(st.binary(max_size=64), st.binary(max_size=32))
def test_a_random_header_and_body_are_a_value_or_a_wire_error(header: bytes, body: bytes) -> None:
    value = outcome(wire.PRELUDE.pack(wire.MAGIC, len(header), len(body)) + header + body)
    assert isinstance(value, WireError) or same(there_and_back(value), value)


@given(groups(), st.data())
def test_a_damaged_frame_is_a_value_or_a_wire_error(group: Group, data: st.DataObject) -> None:
    frame = bytearray(b"".join(wire.pack(group)))
    place = data.draw(st.integers(0, len(frame) - 1))
    match data.draw(st.sampled_from(["change", "cut", "insert"])):
        case "change":
            frame[place] ^= data.draw(st.integers(1, 255))
        case "cut":
            del frame[place:]
        case "insert":
            frame[place:place] = data.draw(st.binary(min_size=1, max_size=9))
    assert isinstance(outcome(bytes(frame)), Group | WireError)


@pytest.mark.usefixtures("cold")  # a fork has taken memory before
def test_claims_of_lengths_are_not_believed() -> None:
    """Lists in lists that each claim to be as long as the message: the memory is not taken."""
    code = """
import resource
from penstock.core.errors import WireError
from penstock.net import wire
size = 1_000_000
claims = b"".join(b"\\xdd" + (size - 5_000 - 10 * depth).to_bytes(4, "big") for depth in range(500))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    wire.unpack(claims + b"\\xc0" * (size - len(claims)), b"", "generator 3")
except WireError:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 200_000, "kilobytes"


def test_an_array_that_claims_more_than_the_body_has_is_refused() -> None:
    prelude, header, body = wire.PRELUDE, *_header_and_body(np.arange(4, dtype=np.int32))
    claimed = header.replace(struct.pack("<Q", 4), struct.pack("<Q", 2**61))
    assert claimed != header
    assert isinstance(outcome(prelude.pack(wire.MAGIC, len(claimed), len(body)) + claimed + body), WireError)


def test_bytes_that_no_array_takes_are_refused() -> None:
    header, body = _header_and_body(np.arange(4, dtype=np.int32))
    with pytest.raises(WireError, match="its arrays take 16 bytes of a body of 20"):
        wire.unpack(header, body + bytes(4), "generator 3")


def test_a_noun_with_other_fields_is_refused() -> None:
    header, _ = _header_and_body(KEY)
    shorter = bytes([header[0] - 1]) + header[1:-1]  # one element less, and the last one cut off
    with pytest.raises(WireError, match="PromptKey has 3 fields, not 2"):
        wire.unpack(shorter, b"", "generator 3")


def test_a_value_a_noun_refuses_is_a_wire_error() -> None:
    header, body = _header_and_body(Sampling(seed=77))
    hot = header.replace(struct.pack(">d", 1.0), struct.pack(">d", -1.0))
    with pytest.raises(WireError, match="temperature=-1"):
        wire.unpack(hot, body, "generator 3")


def test_a_mark_where_none_may_stand_is_refused() -> None:
    header, _ = _header_and_body((1,))
    with pytest.raises(WireError, match="where none may"):
        wire.unpack(b"\x92\x01" + header[1:-1], b"", "generator 3")  # second in a list, not first


def test_a_class_travels_once_it_is_registered() -> None:
    @wire.register
    @dataclasses.dataclass(frozen=True)
    class Voucher:
        ordinal: int

    assert there_and_back([Voucher(3)]) == [Voucher(3)]


def test_two_classes_of_one_name_are_refused() -> None:
    with pytest.raises(WireError, match="two classes named Sampling"):
        wire.register(dataclasses.make_dataclass("Sampling", ["temperature"]))


def test_only_dataclasses_and_named_tuples_can_be_registered() -> None:
    with pytest.raises(WireError, match="only dataclasses and named tuples"):
        wire.register(Colour)


def test_a_field_that_is_no_argument_is_refused() -> None:
    kind = dataclasses.make_dataclass("Counted", [("count", int, dataclasses.field(init=False, default=0))])
    with pytest.raises(WireError, match="no argument of its constructor"):
        wire.register(kind)


def _header_and_body(value: Any) -> tuple[bytes, bytes]:
    frame = b"".join(wire.pack(value))
    length, _ = wire.lengths(frame[: wire.PRELUDE.size], "generator 3")
    return frame[wire.PRELUDE.size :][:length], frame[wire.PRELUDE.size + length :]


def test_small_columns_of_a_group_travel_joined_and_large_ones_from_where_they_lie() -> None:
    def sample(number: int, length: int) -> Sample:
        own = (np.ones(length, bool), np.full(length, number, np.float32), np.full(length, number, np.int32))
        return Sample(SampleKey(KEY, number), {"tokens_T": np.arange(length, dtype=np.int32)}, *own, finish="stop")

    small = Group(Prompt(KEY, ""), tuple(sample(number, 3 + number) for number in range(4)))
    large = Group(Prompt(KEY, ""), tuple(sample(number, wire.SMALL) for number in range(4)))
    assert len(wire.pack(small)) == 2  # the header, and all arrays together
    assert len([part for part in wire.pack(large) if len(part) >= wire.SMALL]) == 16
    for group in (small, large):
        assert same(there_and_back(group), group)


def test_a_group_whose_columns_are_too_long_is_no_frame() -> None:
    whole = Sample(SampleKey(KEY, 0), {}, np.ones(4, bool), np.ones(4, np.float32), np.ones(4, np.int32), "stop")
    prompt, origin, _, *others = table_of(Group(Prompt(KEY, ""), (whole,)))
    with pytest.raises(ValueError, match="a column of 4 steps for 3"):
        group_of(prompt, origin, [3], *others)
