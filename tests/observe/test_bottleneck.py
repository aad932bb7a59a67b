"""What holds a run up: time lines worked out by hand."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from typing import Any, get_args

import pytest

from penstock.config.run import Online, Run
from penstock.config.spec import field_types
from penstock.core.spans import Span
from penstock.observe.lanes import Lane
from penstock.observe.timeline import account, bottleneck, times
from penstock.ui.timeline_text import account_lines


def lane(role: str, *spans: tuple[str, float, float], end: float = 10.0) -> Lane:
    """A role that lives from 0 to ``end``; spans are name, start and end."""
    return Lane(role, tuple(Span(name, start, stop, stop - start) for name, start, stop in spans), ((0.0, end),))


def found(*lanes: Lane) -> tuple[str, float, str, str]:
    held = bottleneck(account(lanes))
    assert held is not None
    return held.role, round(held.share, 6), held.what, held.change


GENERATOR, BUSY = "generator-0", "generate"
HELD = {
    "a learner that waits for busy generators needs more of them": (
        [lane("learner", ("wait", 0, 6), ("train", 6, 10)), lane(GENERATOR, (BUSY, 0, 9))],
        ("learner", 0.6, "waits for groups"), ["roles.generators"],
    ),
    "a learner and generators that wait for each other need a larger lag": (
        [lane("learner", ("wait", 0, 5), ("train", 5, 10)), lane(GENERATOR, (BUSY, 0, 5))],
        ("learner", 0.5, "waits for groups while generators idle"), ["max_lag"],
    ),
    "a learner that waits while only rewards work needs more of them": (
        [lane("learner", ("wait", 0, 7), ("train", 7, 10)), lane(GENERATOR, (BUSY, 0, 2)), lane("reward-0", ("reward", 1, 7))],
        ("learner", 0.5, "waits for rewards"), ["roles.rewards"],  # from 2 to 7: before, the generator worked as well
    ),
    "generators that wait for a busy learner are too many": (
        [lane("learner", ("wait", 0, 1), ("train", 1, 10)), lane(GENERATOR, (BUSY, 0, 5)), lane("generator-1", (BUSY, 0, 3))],
        ("generators", 0.6, "idle"), ["max_lag", "fewer generators"],  # 12 of 20 seconds
    ),
    "a learner publishes": (
        [lane("learner", ("publish", 0, 2), ("train", 2, 10))], ("learner", 0.2, "publishes weights"), ["roles.channel"]
    ),
    "a learner saves": ([lane("learner", ("save", 0, 2), ("train", 2, 10))], ("learner", 0.2, "saves"), ["checkpoint.every"]),
    "a learner evaluates": (
        [lane("learner", ("evaluate", 0, 3), ("train", 3, 10))], ("learner", 0.3, "evaluates"), ["evaluation.every"]
    ),
}  # fmt: skip


@pytest.mark.parametrize(("lanes", "held", "words"), HELD.values(), ids=HELD)
def test_who_is_held_up_by_what_and_which_setting_changes_it(
    lanes: list[Lane], held: tuple[str, float, str], words: list[str]
) -> None:
    role, share, what, change = found(*lanes)
    assert (role, share, what) == held
    assert all(word in change for word in words)


@pytest.mark.parametrize(("kind", "seconds"), [("publish", 1.0), ("save", 1.0), ("evaluate", 2.0), ("wait", 3.0)])
def test_a_share_at_the_bound_is_no_bottleneck(kind: str, seconds: float) -> None:
    assert found(lane("learner", (kind, 0, seconds), ("train", seconds, 10)))[2] == "trains"


def test_of_several_the_largest_counts() -> None:
    generator = lane("generator-0", ("generate", 0, 10))
    assert found(lane("learner", ("save", 0, 2), ("wait", 2, 9), ("train", 9, 10)), generator)[2] == "waits for groups"
    assert found(lane("learner", ("wait", 0, 4), ("save", 4, 9), ("train", 9, 10)), generator)[2] == "saves"


def test_what_holds_the_learner_up_goes_before_generators() -> None:
    learner = lane("learner", ("save", 0, 2), ("train", 2, 10))
    assert found(learner, lane("generator-0", ("generate", 0, 1)))[2] == "saves"


def test_what_lies_before_the_first_wait_counts_for_no_wait() -> None:
    learner = lane("learner", ("train", 0, 100), ("wait", 100, 104), ("train", 104, 110), end=110)
    generator = lane("generator-0", ("generate", 0, 110), end=110)
    assert found(learner, generator)[:3] == ("learner", 0.4, "waits for groups")  # 4 of the last 10 seconds


def test_nothing_holds_up_a_learner_that_trains() -> None:
    learner = lane("learner", ("wait", 0, 1), ("label", 1, 2), ("train", 2, 10))
    role, share, what, change = found(learner, lane("generator-0", ("generate", 0, 8)))
    assert (role, share, what) == ("learner", 0.9, "trains")
    assert change.startswith("nothing holds it up")


@pytest.mark.parametrize("lanes", [(), (lane("generator-0", ("generate", 0, 1)),), (lane("learner", end=0.0),)])
def test_without_a_learners_time_there_is_nothing_to_say(lanes: tuple[Lane, ...]) -> None:
    assert bottleneck(account(lanes)) is None


def test_it_is_one_line_of_words() -> None:
    held = bottleneck(account([lane("learner", ("save", 0, 2.5), ("train", 2.5, 10))]))
    assert str(held) == "learner saves 25% of its time: a larger checkpoint.every"


LINES = (
    lane("learner", ("wait", 0, 4), ("train", 4, 7), ("publish", 7, 8)),  # nothing from 8 to 10
    lane("generator-0", ("generate", 0, 3), ("update", 8, 9)),
    lane("generator-1", ("generate", 0, 2)),
    lane("reward-0", ("reward", 2, 4)),
)
"""Who works when, in seconds: the generators to 3, a reward worker from 2 to 4, the learner from 4 to 8."""


def test_times_of_the_learner_are_work_weights_and_whom_it_waits_for() -> None:
    assert times(account(LINES))["learner"] == pytest.approx(
        {
            "computing": 0.3,
            "moving weights": 0.1,
            "waiting for generators": 0.4,  # 0 to 3, and 8 to 9, in which one takes weights
            "waiting for rewards": 0.1,  # 3 to 4
            "idle": 0.1,  # 9 to 10
        }
    )


def test_times_of_generators_are_taken_together() -> None:
    assert times(account(LINES))["generator"] == pytest.approx(
        {
            "computing": 0.25,  # 3 and 2 of twice 10
            "moving weights": 0.05,
            "waiting for learners": 0.4,  # both from 4 to 8
            "waiting for rewards": 0.15,  # one from 2 to 4, the other from 3 to 4
            "idle": 0.15,  # one from 8, the other from 9 on
        }
    )


def test_times_add_up() -> None:
    for shares in times(account(LINES)).values():
        assert sum(shares.values()) == pytest.approx(1.0)


def test_a_run_in_one_process_has_no_times_of_generators() -> None:
    assert list(times(account([lane("learner", ("train", 0, 10))]))) == ["learner"]


def test_the_terminal_says_both() -> None:
    lines = account_lines(account(LINES))
    assert "bottleneck: learner waits for groups while generators idle 40% of its time: a larger max_lag " in "\n".join(lines)
    assert (
        "time of learners: computing 30%, moving weights 10%, waiting for generators 40%, waiting for rewards 10%, idle 10%"
        in lines
    )


def settings(kind: Any, before: str = "") -> set[str]:
    """Dotted names of everything that a spec lets a user set."""
    names: set[str] = set()
    for name, hint in field_types(kind).items():
        names.add(before + name)
        for inner in (hint, *get_args(hint)):
            if is_dataclass(inner) and isinstance(inner, type) and fields(inner) and before.count(".") < 2:
                names |= settings(inner, f"{before}{name}.")
    return names


def test_settings_that_it_names_exist() -> None:
    lanes = [
        [lane("learner", (kind, 0, 5), ("train", 5, 10)), lane("generator-0", ("generate", 0, worked))]
        for kind in ("wait", "publish", "save", "evaluate")
        for worked in (4, 10)
    ]
    lanes.append([lane("learner", ("wait", 0, 7)), lane("reward-0", ("reward", 0, 7))])
    held = [bottleneck(account(some)) for some in lanes]
    named = {name for one in held if one for name in re.findall(r"[a-z]+\.[a-z_]+|max_lag", one.change)}
    assert {"roles.generators", "roles.rewards", "max_lag"} <= named
    assert named <= settings(Run) | settings(Online)
