"""Plans from training shards to generation shards: published volumes, brute force on small layouts, and the slices."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import WeightError
from penstock.weights.reshard import Layout, Move, Part, Plan, Volumes, gathered, handed_out, overlap, plan, without

DIVISIBLE = (Part("up", (48, 8), 0), Part("down", (8, 48), 1, 2))
UNEVEN = (Part("up", (7, 3), 0), Part("down", (3, 5), 1, 2), Part("norm", (3,), None))
SIDES = st.integers(1, 4)
LAYOUTS = [
    (Layout(before_data, before_tensor), Layout(before_data * before_tensor // after_tensor, after_tensor))
    for before_data, before_tensor in itertools.product((1, 2, 3, 4), repeat=2)
    for after_tensor in range(1, 7)
    if before_data * before_tensor % after_tensor == 0
]


def whole(parts: tuple[Part, ...]) -> int:
    return sum(part.bytes((0, part.length)) for part in parts)


def worst(volumes: list[Volumes]) -> Volumes:
    return Volumes(*(max(values) for values in zip(*volumes, strict=True)))


@pytest.mark.parametrize(("dp", "tp", "tg"), [(1, 2, 1), (2, 4, 2), (2, 4, 1), (4, 2, 1), (1, 8, 2), (3, 4, 4), (2, 8, 4)])
def test_volumes_are_the_published_ones(dp: int, tp: int, tg: int) -> None:
    """Table 2 of arXiv:2409.19256 with one pipeline stage, at the rank that pays most."""
    before, after, m = Layout(dp, tp), Layout(dp * tp // tg, tg), whole(DIVISIBLE)
    n = dp * tp
    made = plan(DIVISIBLE, before, after)
    ours = worst([made.volumes(rank) for rank in range(n)])
    assert ours == (m * (tp - tg) // (tg * tp), m // tg, 0)
    zero = worst(gathered(DIVISIBLE, before, after, "all ranks"))
    assert zero[:2] == (m * (n - 1) // n, m)
    copy = worst(gathered(DIVISIBLE, before, after, "copy"))
    assert copy[:2] == (m * (tp - 1) // tp, m)
    if 1 < tg < tp:  # with one shard all is used, with as many as in training consecutive ranks fit
        assert copy.redundant == m // tp
        assert zero.redundant == m // n


def test_a_plan_by_hand() -> None:
    """(1, 4) → (2, 2) of a row of four: ranks 0 and 1 make up the first half, 2 and 3 the second."""
    row = Part("row", (4,), 0)
    made = plan([row], Layout(1, 4), Layout(2, 2))
    assert made.shards == {0: 0, 1: 0, 2: 1, 3: 1}
    assert made.moves == (Move(row, 1, 0, 1, 2), Move(row, 0, 1, 0, 1), Move(row, 3, 2, 3, 4), Move(row, 2, 3, 2, 3))
    assert made.bytes == 16
    assert made.volumes(0) == (4, 8, 0)


def test_to_finer_shards_nothing_moves() -> None:
    made = plan(DIVISIBLE, Layout(4, 2), Layout(1, 8))
    assert made.moves == ()
    assert made.volumes(0).redundant == whole(DIVISIBLE) // 2 - whole(DIVISIBLE) // 8


def bytes_of(parts: tuple[Part, ...], before: Layout, after: Layout, shards: tuple[int, ...]) -> int:
    """What all ranks lack if these are their generation shards."""
    made = Plan(parts, before, after, dict(enumerate(shards)), ())
    lacking = ((part, without(made.needed(part, rank), made.held(part, rank))) for rank in range(len(shards)) for part in parts)
    return sum(part.bytes(piece) for part, pieces in lacking for piece in pieces)


@pytest.mark.parametrize(("before", "after"), [pair for pair in LAYOUTS if pair[0].ranks <= 6])
def test_no_way_to_hand_shards_out_moves_fewer_bytes(before: Layout, after: Layout) -> None:
    every = set(itertools.permutations([shard for shard in range(after.tensor) for _ in range(after.data)]))
    fewest = min(bytes_of(DIVISIBLE, before, after, shards) for shards in every)
    assert plan(DIVISIBLE, before, after).bytes == fewest


@pytest.mark.parametrize(("before", "after"), LAYOUTS)
@pytest.mark.parametrize("apart", [False, True])
def test_every_rank_gets_its_shard_whole_and_no_element_twice(before: Layout, after: Layout, apart: bool) -> None:
    made = plan(UNEVEN, before, after, apart=apart)
    assert sorted(made.shards.values()) == sorted(list(range(after.tensor)) * after.data)
    for rank, part in itertools.product(made.shards, UNEVEN):
        own = overlap(made.held(part, rank), made.needed(part, rank))
        got = [(move.start, move.stop) for move in made.moves if move.target == rank and move.part == part]
        elements = [at for start, stop in (own, *got) for at in range(start, stop)]
        assert sorted(elements) == list(range(*made.needed(part, rank)))
    for move in made.moves:
        assert overlap((move.start, move.stop), made.held(move.part, move.source)) == (move.start, move.stop)
        assert move.source != move.target


@given(data=SIDES, tensor=SIDES, other=SIDES)
def test_apart_the_copies_share_the_sending(data: int, tensor: int, other: int) -> None:
    before, after = Layout(data, tensor), Layout(data, other)
    made = plan(DIVISIBLE, before, after, apart=True)
    assert made.bytes == data * whole(DIVISIBLE)
    sent = dict.fromkeys(range(data), 0)
    for move in made.moves:
        sent[move.source // tensor] += move.part.bytes((move.start, move.stop))
    assert sum(sent.values()) == made.bytes
    if other == 1:
        assert set(sent.values()) == {whole(DIVISIBLE)}


def test_handing_out_keeps_numbers_of_copies() -> None:
    assert list(handed_out(Layout(2, 2), Layout(4, 1)).values()) == [0, 0, 0, 0]
    assert handed_out(Layout(2, 3), Layout(3, 2)) == {0: 0, 3: 0, 1: 0, 4: 1, 2: 1, 5: 1}


def test_layouts_that_do_not_fit_are_refused() -> None:
    with pytest.raises(WeightError, match="2 × 2 ranks cannot turn into 1 × 2"):
        plan(DIVISIBLE, Layout(2, 2), Layout(1, 2))
    with pytest.raises(WeightError, match="at least 1"):
        Layout(0, 2)


RANK = """
import sys
from datetime import timedelta
import torch
import torch.distributed as distributed
from penstock.weights.reshard import Layout, Part, carry_out, plan

rank, world, file, apart = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4] == "apart"
distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=world, timeout=timedelta(seconds=60))
parts = (Part("up", (7, 3), 0), Part("down", (3, 5), 1), Part("norm", (3,), None))
full = {part.name: torch.randn(part.shape, generator=torch.Generator().manual_seed(index)) for index, part in enumerate(parts)}

def cut(part, interval):
    return full[part.name] if part.dim is None else full[part.name].narrow(part.dim, interval[0], interval[1] - interval[0])

for text in sys.argv[5:]:
    before, after = (Layout(*map(int, side.split("x"))) for side in text.split(">"))
    made = plan(parts, before, after, apart=apart)
    shards = {part.name: cut(part, made.held(part, rank)).clone() if rank < before.ranks else torch.empty(0) for part in parts}
    found = carry_out(made, rank, shards)
    assert found.keys() == ({part.name for part in parts} if rank in made.shards else set()), found.keys()
    for part in parts:
        if rank in made.shards:
            assert torch.equal(found[part.name], cut(part, made.needed(part, rank))), (rank, part.name)
    print("equal", text)
"""

CASES = {"same": (4, "1x4>2x2", "2x2>4x1", "2x2>1x4"), "apart": (5, "1x2>1x3", "2x2>1x1", "1x1>2x2")}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_ranks_that_carry_a_plan_out_end_with_slices_of_the_whole(case: str, tmp_path: Path) -> None:
    world, *layouts = CASES[case]
    words = [str(world), str(tmp_path / "store"), case, *layouts]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    started = [subprocess.Popen([sys.executable, "-c", RANK, str(rank), *words], **pipes) for rank in range(world)]
    try:
        said = [process.communicate(timeout=120)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [text.splitlines()[-len(layouts) :] for text in said] == [[f"equal {text}" for text in layouts]] * world, said
