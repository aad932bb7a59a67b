"""What is shown of a batch: which samples, and the gap between learner and generator token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from penstock.core.contracts import Scores
from penstock.core.events import unpacked
from penstock.core.types import Group, Prompt, PromptKey, Sample, SampleKey, Unit
from penstock.loops.look import EXACT, TOKENS, Seen, chosen, due, look, pieces, rows_of

BYTES = {1: b"na", 2: b"\xc3", 3: b"\xaf", 4: b"ve", 5: b" cat"}


def decode(tokens: Sequence[int]) -> str:
    return b"".join(BYTES[token] for token in tokens).decode("utf-8", "replace")


def sample(prompt: int, place: int, *actions: int, error: str | None = None) -> Sample:
    key = SampleKey(PromptKey("rows", 0, prompt), place)
    tokens_T = np.array([9, *actions], np.int32)
    action_T = np.array([False, *[True] * len(actions)])
    logp_T = np.where(action_T, np.float32(-1.5), np.float32(0))
    version_T = np.where(action_T, 4, -1).astype(np.int32)
    return Sample(key, {"tokens_T": tokens_T}, action_T, logp_T, version_T, "stop", text=decode(actions), error=error)


def group(prompt: int, count: int) -> Group:
    samples = tuple(sample(prompt, place, 1, 5) for place in range(count))
    return Group(Prompt(PromptKey("rows", 0, prompt), f"prompt {prompt}"), samples)


class Learner:
    """Says -1.25 for every action, and notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Sequence[Unit], frozenset[str], float]] = []

    def score(self, units: Sequence[Unit], needs: frozenset[str]) -> Scores:
        self.asked.append((units, needs))
        logp = [np.full(int(row.action_T.sum()), -1.25, np.float32) for unit in units for row in unit]
        return {"logp": logp}


def test_first_samples_come_before_their_siblings() -> None:
    keys = [one.sample.key for one in chosen([group(prompt, 4) for prompt in range(5)])]
    assert [(key.prompt.ordinal, key.sample) for key in keys] == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]


def test_a_failed_sample_is_among_those_shown() -> None:
    bad = Group(Prompt(PromptKey("rows", 0, 9), "prompt 9"), (sample(9, 0, 1), sample(9, 1, 1, error="RewardError: no")))
    assert chosen([*(group(prompt, 2) for prompt in range(4)), bad])[-1].sample.error == "RewardError: no"


@pytest.mark.parametrize(("steps", "shown"), [(40, 40), (1000, 101), (10_000, 101)])
def test_about_a_hundred_steps_of_a_stage_are_shown(steps: int, shown: int) -> None:
    assert sum(due(done, steps) for done in range(1, steps + 1)) == shown


def test_the_gap_of_a_token_is_the_learners_log_prob_less_the_generators() -> None:
    learner = Learner()
    (row, *_) = rows_of(look(learner, [group(0, 1)]), decode)
    assert (row["tokens"]["pieces"], row["tokens"]["gap"]) == (["na", " cat"], [0.25, 0.25])
    assert unpacked(row["tokens"]["logp"], "<f4") == [-1.5, -1.5]
    assert learner.asked[0][1] == frozenset({"logp"})
    assert (row["key"], row["version"], row["length"], row["held_out"]) == ("rows/0/0#0", 4, 2, False)


def test_a_sample_without_an_action_is_shown_and_not_scored() -> None:
    empty = Group(Prompt(PromptKey("rows", 0, 0), "?"), (sample(0, 0),))
    learner = Learner()
    (row,) = rows_of(look(learner, [empty]), decode)
    assert "tokens" not in row
    assert learner.asked == []


def test_tokens_of_a_long_sample_are_bounded() -> None:
    long = Group(Prompt(PromptKey("rows", 0, 0), "?"), (sample(0, 0, *[1] * (TOKENS + 50)),))
    (row,) = rows_of(look(Learner(), [long]), decode)
    assert [len(row["tokens"][name]) for name in ("pieces", "gap")] == [TOKENS] * 2
    assert row["length"] == TOKENS + 50


def test_ids_and_log_probs_of_a_sample_are_kept_exactly() -> None:
    drawn = replace(
        sample(0, 0, 1, 5, 1),
        columns={"tokens_T": np.array([9, 1, 5, 70_000], np.int32)},
        logp_T=np.array([0, -1 / 3, -1e-9, -20.25], np.float32),
    )
    (row,) = rows_of([Seen(group(0, 1), drawn)], decode)
    assert unpacked(row["tokens"]["ids"], "<i4") == [9, 1, 5, 70_000]
    assert np.array_equal(np.array(unpacked(row["tokens"]["logp"], "<f4"), np.float32), drawn.logp_T[1:])


def test_of_a_sample_that_is_too_long_no_ids_are_kept() -> None:
    (row,) = rows_of([Seen(group(0, 1), sample(0, 0, *[1] * EXACT))], decode)
    assert "tokens" not in row


def test_of_a_sample_with_several_turns_no_ids_are_kept() -> None:
    turns = replace(sample(0, 0, 1, 5, 1), action_T=np.array([False, True, False, True]))
    (row,) = rows_of([Seen(group(0, 1), turns, np.full(2, -1.5, np.float32))], decode)
    assert "ids" not in row["tokens"]
    assert len(unpacked(row["tokens"]["logp"], "<f4")) == len(row["tokens"]["gap"]) == 2


def test_a_character_of_several_tokens_comes_with_the_last() -> None:
    assert pieces(np.array([1, 2, 3, 4], np.int32), decode) == ["na", "", "ï", "ve"]


def test_pieces_of_many_tokens_are_the_whole_text() -> None:
    tokens_A = np.array([1, 2, 3, 4, 5] * 20, np.int32)
    assert "".join(pieces(tokens_A, decode)) == decode(tokens_A.tolist())


def test_bytes_that_are_never_a_character_are_shown_as_such_in_the_end() -> None:
    assert "\ufffd" in "".join(pieces(np.array([3] * 12, np.int32), decode))


def test_a_sample_that_ends_within_a_character_shows_the_broken_end() -> None:
    assert pieces(np.array([1, 2], np.int32), decode) == ["na", "\ufffd"]


def test_an_evaluated_sample_has_the_version_that_was_measured() -> None:
    (row,) = rows_of(chosen([group(0, 1)]), decode, evaluated=7)
    assert (row["version"], row["held_out"]) == (7, True)
