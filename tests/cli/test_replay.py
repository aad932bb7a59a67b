"""``penstock replay``: a recorded stage once more, equal in every step, or one line that says what is wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_examples import RECIPES, Outcome, Penstock, contents
from processes import Server

from penstock.core.errors import ReplayError
from penstock.models.files import load_model, save_model
from penstock.runtime.replay import read_leases, read_tapes

STEPS = 5
WORDS = ("--grpo.max_lag", "1", "--grpo.steps", str(STEPS), "--grpo.sampling.max_new_tokens", "12")
STEP = "penstock.loops.learn:Trainer.step"
EQUAL = f"{STEPS} steps replayed: loss, gradient_norm, reward/mean are equal in each, and so are the weights of runs/run/model"
SCHEDULE = Path("runs/run/schedule/grpo")
TAPE = SCHEDULE / "generator-0.0.jsonl"


def train(server: Server, home: Path, *words: str, first: str = "") -> int:
    ended = server.run(home, "train", f"{RECIPES}:rewarded", "--name", "run", *WORDS, *words, first=first)
    assert ended.code is not None
    return ended.code


@pytest.fixture(scope="session")
def taped(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of a finished run with ``max_lag=1``; not to be changed."""
    home = tmp_path_factory.mktemp("taped")
    assert train(server, home) == 0
    return home


@pytest.fixture
def own(taped: Path, tmp_path: Path, penstock: Penstock) -> Penstock:
    """Commands in a folder with a run of one's own."""
    shutil.copytree(taped / "runs", tmp_path / "runs")
    return penstock


def assert_replayed(penstock: Penstock) -> Outcome:
    """What is said of a replay in which all is equal."""
    told = penstock("replay", "runs/run")
    assert told.code == 0, told.err
    assert told.out.splitlines()[-1] == EQUAL
    return told


def edit(path: Path, change: Callable[[list[str]], list[str]]) -> None:
    path.write_text("".join(change(path.read_text(encoding="utf-8").splitlines(keepends=True))), encoding="utf-8")


def test_a_run_that_ran_ahead_is_replayed_to_the_same_weights(own: Penstock) -> None:
    told = assert_replayed(own)
    assert [line.split()[1] for line in told.out.splitlines()[:-1]] == [f"{step}/{STEPS}" for step in range(1, STEPS + 1)]


def test_a_replay_changes_nothing_in_the_run(own: Penstock) -> None:
    before = contents(Path("runs/run"))
    assert_replayed(own)
    assert contents(Path("runs/run")) == before


def test_the_first_steps_alone_are_replayed_without_word_of_the_weights(own: Penstock) -> None:
    told = own("replay", "runs/run", "--steps", "2")
    assert told.code == 0, told.err
    assert told.out.splitlines()[-1] == "2 steps replayed: loss, gradient_norm, reward/mean are equal in each"


@pytest.mark.parametrize(
    "words", [("--grpo.learner.dtype", "bfloat16"), ("--grpo.learner.lora", '{"rank": 2}')], ids=["bfloat16", "adapters"]
)
def test_what_the_generator_shares_with_the_learner_is_replayed_as_it_was(
    words: tuple[str, str], server: Server, tmp_path: Path, penstock: Penstock
) -> None:
    if "lora" in words[0]:
        pytest.importorskip("peft")
    assert train(server, tmp_path, *words) == 0
    assert_replayed(penstock)


def test_a_run_that_was_stopped_in_order_is_replayed_through_the_stop(
    server: Server, tmp_path: Path, penstock: Penstock
) -> None:
    assert train(server, tmp_path, first=f"arm({STEP!r}, 3, signal.SIGINT)") == 130
    assert penstock("train", "--resume", "runs/run").code == 0
    assert len(list(SCHEDULE.glob("generator-0.*"))) == 2
    assert_replayed(penstock)


def test_a_run_that_was_killed_after_its_checkpoint_is_replayed_as_it_went_on(
    server: Server, tmp_path: Path, penstock: Penstock
) -> None:
    """Step 3 was trained twice, on different groups; the record of the first time leads nowhere."""
    assert train(server, tmp_path, first=f"arm({STEP!r}, 4)") == -9
    assert penstock("train", "--resume", "runs/run").code == 0
    assert_replayed(penstock)


def test_a_sample_whose_environment_was_too_slow_fails_again_where_it_is_quick(
    server: Server, tmp_path: Path, penstock: Penstock
) -> None:
    dialogue = json.dumps({"kind": "EnvironmentSpec", "function": f"{RECIPES}:hesitant", "turns": 3, "deadline": 0.3})
    assert train(server, tmp_path, "--grpo.environment", dialogue) == 0
    failed = [json.loads(line)["failed"] for line in (tmp_path / SCHEDULE / "leases.jsonl").read_text().splitlines()]
    assert any(failed)
    (tmp_path / "quick").touch()
    assert_replayed(penstock)


# ---- what is different is named


def test_a_loss_that_differs_is_named_with_its_step(own: Penstock) -> None:
    def change(lines: list[str]) -> list[str]:
        events = [json.loads(line) for line in lines]
        for event in events:
            if event["kind"] == "metrics" and event["step"] in (2, 4):
                event["values"]["loss"] += 1.0
        return [json.dumps(event) + "\n" for event in events]

    edit(Path("runs/run/events.jsonl"), change)
    told = own("replay", "runs/run")
    assert told.code == 1
    (named,) = (line for line in told.out.splitlines() if "differs first" in line)
    assert named.startswith("step 2 differs first: loss ")
    assert told.out.splitlines()[-1] == f"2 of {STEPS} steps differ"


def test_weights_that_differ_are_named(own: Penstock) -> None:
    model = load_model("runs/run/model")
    next(iter(model.parameters())).data[0] += 1.0
    save_model(model, Path("runs/run/model"))
    own("replay", "runs/run").assert_refused("all steps are equal, but weight", "is not that of runs/run/model")


# ---- what a kill or a hand has done to the record


def test_a_torn_last_line_of_a_tape_is_passed_over(own: Penstock) -> None:
    with open(TAPE, "a", encoding="utf-8") as out:
        out.write('[99, "subm')
    assert_replayed(own)


def test_a_batch_without_its_tape_is_refused(own: Penstock) -> None:
    TAPE.unlink()
    own("replay", "runs/run").assert_refused("step 1 was trained on group generator-0.0/0", "generator-0.0.jsonl")


def test_a_group_that_is_not_on_its_tape_is_refused(own: Penstock) -> None:
    edit(TAPE, lambda lines: [line for line in lines if '"generator-0.0/9"' not in line])
    own("replay", "runs/run").assert_refused("step 3 was trained on group generator-0.0/9, which is not on")


def test_a_last_request_that_is_not_on_its_tape_is_refused(own: Penstock) -> None:
    edit(TAPE, lambda lines: lines[: 1 + 8 + 15])  # of the first batch, all but its last request
    own("replay", "runs/run", "--steps", "1").assert_refused("generator-0.0: the tape ends before", "enters")


def test_a_request_that_is_not_on_its_tape_is_not_waited_for_for_ever(own: Penstock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.runtime.replay.PATIENCE", 0.5)
    edit(TAPE, lambda lines: lines[:12] + lines[13:])
    own("replay", "runs/run").assert_refused("waited 0 s for", "and nothing moved; the record is damaged")


def test_turns_that_nothing_is_drawn_in_are_refused(own: Penstock) -> None:
    never = '[100000, "begin", "generator-0.0/99", 99]\n'
    edit(TAPE, lambda lines: [*lines[:41], never, *lines[41:]])  # when the first eight groups have begun
    own("replay", "runs/run").assert_refused("the tape goes on to turn 100000, but all is drawn at turn")


def test_a_batch_that_was_not_recorded_is_refused(own: Penstock) -> None:
    edit(SCHEDULE / "leases.jsonl", lambda lines: lines[:3])
    own("replay", "runs/run").assert_refused("the record ends before step 4")


def test_a_run_without_a_record_is_refused(own: Penstock) -> None:
    shutil.rmtree("runs/run/schedule")
    own("replay", "runs/run").assert_refused("leases.jsonl: no such record; only runs of this version or later")


# ---- wrong words


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ((), ("Missing from penstock replay: RUN",)),
        (("runs/other",), ("runs/other: no run.json here",)),
        (("runs/run", "--stage", "judge"), ("no online stage 'judge' to replay; there are: grpo",)),
        (("runs/run", "--steps", "6"), ("stage grpo recorded 5 steps; replay 1 to as many",)),
        (("runs/run", "--steps", "-1"), ("stage grpo recorded 5 steps; replay 1 to as many",)),
    ],
)
def test_wrong_words_are_refused(words: tuple[str, ...], parts: tuple[str, ...], own: Penstock) -> None:
    own("replay", *words).assert_refused(*parts)


def test_a_stage_that_learned_from_data_alone_has_nothing_to_replay(penstock: Penstock) -> None:
    assert penstock("train", f"{RECIPES}:one_step", "--name", "run").code == 0
    penstock("replay", "runs/run").assert_refused("no online stage to replay; there are: none")


# ---- the part of a record that counts


def record(folder: Path, tapes: dict[str, list[list[object]]], *batches: tuple[int, list[str]]) -> Path:
    for name, lines in tapes.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    lines = [{"version": version, "threads": 1, "groups": groups, "failed": []} for version, groups in batches]
    (folder / "leases.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return folder


FIRST = [
    [0, "load", 0, 0],
    [0, "begin", "g.0/0", 0],
    [4, "load", 1, 0],
    [4, "begin", "g.0/1", 1],
    [8, "load", 2, 0],
    [8, "begin", "g.0/2", 2],
]
SECOND = [[0, "load", 1, 0], [0, "begin", "g.1/0", 1], [4, "load", 2, 0], [4, "begin", "g.1/1", 2]]


def test_a_tape_ends_with_the_first_weights_that_its_last_trained_group_cannot_have_seen(tmp_path: Path) -> None:
    record(tmp_path, {"g.0": FIRST}, (0, ["g.0/0"]), (1, ["g.0/1"]))
    assert read_tapes(tmp_path, read_leases(tmp_path, 2)) == {"g.0": FIRST[:4]}
    assert read_tapes(tmp_path, read_leases(tmp_path, 1)) == {"g.0": FIRST[:2]}


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ([(0, ["g.0/0"]), (1, ["g.0/1"]), (1, ["g.1/0"])], {"g.0": FIRST[:2], "g.1": SECOND[:2]}),
        ([(0, ["g.0/0"]), (1, ["g.0/1"])], {"g.0": FIRST[:4]}),
        ([(0, ["g.0/0"]), (1, ["g.0/0"])], {"g.0": FIRST[:2]}),
    ],
    ids=["of a batch made again, the last", "no take of which nothing was trained", "of a group used twice, the first time"],
)
def test_what_counts_of_two_takes(
    batches: list[tuple[int, list[str]]], expected: dict[str, list[list[object]]], tmp_path: Path
) -> None:
    record(tmp_path, {"g.0": FIRST, "g.1": SECOND}, *batches)
    assert read_tapes(tmp_path, read_leases(tmp_path, 2)) == expected


def test_a_group_on_no_tape_is_named_with_the_step_that_needs_it(tmp_path: Path) -> None:
    record(tmp_path, {"g.0": FIRST}, (0, ["g.0/0"]), (1, ["g.7/0"]))
    with pytest.raises(ReplayError, match=r"step 2 was trained on group g\.7/0, which is not on .*g\.7\.jsonl"):
        read_tapes(tmp_path, read_leases(tmp_path, 2))
