"""``penstock compare``: families of seeds from run folders, verdicts, and one line for what cannot be compared."""

import json

import pytest

from penstock.config.run import Run
from penstock.config.spec import override, plain
from penstock.recipes.quickstart import quickstart


@pytest.fixture
def runs(tmp_path):
    """Writes run folders: rewards of the last step by seed, under some learning rate."""

    def write(name, rewards, rate="3e-4", first_seed=0, steps=(20, 100)):
        for seed, reward in enumerate(rewards, first_seed):
            folder = tmp_path / "runs" / f"{name}-{seed}"
            folder.mkdir(parents=True)
            spec: Run = override(quickstart(seed=seed), "stages.grpo.learner.learning_rate", rate)
            (folder / "run.json").write_text(json.dumps(plain(spec)))
            lines = [
                {"kind": "metrics", "time": 1.0 + step, "stage": "grpo", "step": step,
                 "values": {"evaluation/reward": reward if step == steps[-1] else 0.25, "loss": 1 - reward}}
                for step in steps
            ]  # fmt: skip
            (folder / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return tmp_path / "runs"

    return write


@pytest.fixture
def compare(penstock):
    return lambda *words: penstock("compare", *map(str, words))


def test_the_better_of_two_families_is_named_with_its_numbers(runs, compare):
    runs("slow", (0.5, 0.52, 0.51, 0.53))
    shown = compare(runs("fast", (0.9, 0.91, 0.92, 0.93), rate="1e-4"))
    assert shown.code == 0
    assert "evaluation/reward at step 100" in shown.out
    assert "A is better than B. A − B = 0.400 (" in shown.out
    assert "p = 0.029" in shown.out
    assert "100% of the pairs" in shown.out
    assert "stages[1].learner.learning_rate: 0.0001 → 0.0003" in shown.out
    assert "0.250 (0.250 to 0.250)" in shown.out  # the band at step 20


def test_lower_values_can_be_better(runs, compare):
    runs("slow", (0.5, 0.52, 0.51, 0.53))
    root = runs("fast", (0.9, 0.91, 0.92, 0.93), rate="1e-4")
    assert "A is better than B" in compare(root, "--metric", "loss", "--lower-is-better").out
    assert "B is better than A" in compare(root, "--metric", "loss").out


def test_too_few_seeds_are_said_to_be_too_few(runs, compare):
    runs("slow", (0.1, 0.2))
    shown = compare(runs("fast", (0.8, 0.9), "1e-4"))
    assert "so few seeds cannot show a difference, however large; run 4 of each" in shown.out


def test_one_family_has_a_summary_and_no_verdict(runs, compare):
    shown = compare(runs("one", (0.5, 0.7, 0.9)))
    assert shown.code == 0
    assert "A: one-0, one-1, one-2" in shown.out
    assert "better" not in shown.out


def test_runs_meet_at_the_last_step_that_all_have(runs, compare):
    runs("short", (0.4,), steps=(20, 60))
    assert "at step 60" in compare(runs("long", (0.9,), rate="1e-4", steps=(20, 60, 100))).out


def test_a_seed_that_is_there_twice_is_refused(runs, compare):
    runs("one", (0.5,))
    compare(runs("two", (0.6,))).assert_refused("have the same spec and seed 0; leave one of them out")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--metric", "nothing"), "no values of nothing; choose --metric of its own: evaluation/reward, loss"),
        (("--stage", "ppo"), "no stage 'ppo' in its log; there are: grpo"),
    ],
)
def test_what_is_not_there_is_named(runs, compare, words, message):
    compare(runs("one", (0.5, 0.6)), *words).assert_refused(message)


def test_a_folder_without_runs_is_named(compare, tmp_path):
    compare(tmp_path).assert_refused(f"{tmp_path}: 0 runs there")


def test_runs_without_a_step_in_common_are_refused(runs, compare):
    runs("one", (0.5,), steps=(10, 30))
    refused = compare(runs("two", (0.6,), rate="1e-4", steps=(20, 40)))
    refused.assert_refused("no step with evaluation/reward in common")
