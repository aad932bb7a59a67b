"""Mathematical equality in a process that may be killed."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from reward_examples import make_group, make_sample, score

from penstock.config.run import RewardSpec
from penstock.core.errors import RewardError, SpecError
from penstock.rewards.math import MathReward
from penstock.rewards.runner import Mixture

HANGS = "$9^{9^{9^{9}}}$"


@contextlib.contextmanager
def judging(deadline=30, **options):
    """A judge with one process, which has been started."""
    made = MathReward(deadline, processes=1, **options)
    try:
        assert made(make_sample("1"), {"answer": "1"}) == 1
        yield made
    finally:
        made.close()


def process_of(judge):
    return judge._all[0]._process


@pytest.fixture(scope="module")
def judge():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_API_KEY", "a secret")
        with judging(limit=10) as made:
            yield made


@pytest.mark.parametrize(
    ("answer", "text", "right"),
    [
        ("72", "The answer is 72.", 1),
        ("72", "The answer is 73.", 0),
        ("48/2 = 24\n#### 72", "So \\boxed{72}", 1),
        ("48/2 = 24\n#### 72", "24", 0),
        ("1/2", "$\\frac{1}{2}$", 1),
        ("1/2", "it is 0.5", 1),
        ("\\sqrt{2}", "$2^{1/2}$", 1),
        ("3\\sqrt{2}", "3", 0),
        ("3\\sqrt{2}", "3\\sqrt{2}", 1),
        ("x^2+2x+1", "$(x+1)^2$", 1),
        ("(1,2)", "$(1, 2)$", 1),
        (72, "72", 1),
        ("5", "", 0),
        ("5", "no idea", 0),
        ("5", "\\frac{{{", 0),
    ],
)
def test_answers_are_compared_as_mathematics(judge, answer, text, right):
    assert judge(make_sample(text), {"answer": answer}) == right


def test_an_expected_answer_that_is_no_mathematics_is_an_error(judge):
    with pytest.raises(RewardError, match=r"cannot read the expected answer.*exact_match"):
        judge(make_sample("5"), {"answer": "#### "})


def test_a_missing_column_is_an_error(judge):
    with pytest.raises(RewardError, match='no value in column "answer"'):
        judge(make_sample("5"), {"solution": "5"})


def test_text_in_any_writing_gets_through(judge):
    assert judge(make_sample("zwölf\u2028 ✓ \ud800 \x00 is 12"), {"answer": "12"}) == 1


def test_a_hanging_expression_is_cut_off_and_the_next_call_works():
    with judging(limit=1) as judge:
        first, start = process_of(judge).pid, time.monotonic()
        assert judge(make_sample(HANGS), {"answer": "1"}) == 0
        assert judge.timeouts == 1
        assert time.monotonic() - start < 3
        assert judge(make_sample("1"), {"answer": "1"}) == 1
        assert process_of(judge).pid != first


def test_the_process_has_no_secret_of_the_environment(judge):
    with open(f"/proc/{process_of(judge).pid}/environ", "rb") as held:
        names = {entry.partition(b"=")[0] for entry in held.read().split(b"\0")}
    assert b"PYTHONPATH" in names
    assert b"WANDB_API_KEY" not in names


def test_in_a_mixture_a_hanging_sample_scores_0_and_its_siblings_what_is_theirs():
    made = Mixture((RewardSpec(function="math", options={"limit": 1}),))
    group = score(made, make_group("42", HANGS, "43", "$\\frac{84}{2}$"))
    assert [sample.reward for sample in group.samples] == [1.0, 0.0, 0.0, 1.0]
    assert group.samples[1].error is None


def test_a_process_that_dies_fails_one_answer_and_is_started_again():
    with judging(limit=20) as judge:
        threading.Timer(0.3, process_of(judge).kill).start()
        with pytest.raises(RewardError, match=r"its process died \(exit code -9\)"):
            judge(make_sample(HANGS), {"answer": "1"})
        assert judge(make_sample("1"), {"answer": "1"}) == 1
        process = process_of(judge)
    assert process.returncode is not None, "closing ends the processes"


def test_the_deadline_of_the_spec_bounds_the_limit():
    begun = time.monotonic()
    with contextlib.closing(MathReward(0.5, limit=30, processes=1)) as judge:
        assert judge(make_sample(HANGS), {"answer": "1"}) == 0
        assert judge.timeouts == 1
    assert time.monotonic() - begun < 25


async def test_several_threads_share_the_processes():
    made = Mixture((RewardSpec(function="math"),))
    groups = await asyncio.gather(*(made(make_group("42", "41", "42.0")) for _ in range(10)))
    await made.close()
    assert [sample.reward for group in groups for sample in group.samples] == [1.0, 0.0, 1.0] * 10


def test_a_worker_ends_when_its_parent_is_killed():
    code = (
        "import os, signal\n"
        "from types import SimpleNamespace\n"
        "from penstock.rewards.math import MathReward\n"
        "judge = MathReward(30, processes=1)\n"
        "judge(SimpleNamespace(text='1'), {'answer': '1'})\n"
        "print(judge._all[0]._process.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert done.returncode == -signal.SIGKILL
    worker, waited = int(done.stdout), time.monotonic()
    while time.monotonic() - waited < 10:
        try:
            with open(f"/proc/{worker}/stat") as stat:
                if stat.read().split()[2] == "Z":
                    return
            os.kill(worker, 0)
        except (ProcessLookupError, FileNotFoundError):
            return
        time.sleep(0.05)
    raise AssertionError("the worker outlived its parent")


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SpecError, match=r"pip install penstock\[math\]"):
        Mixture((RewardSpec(function="math"),))


def test_a_limit_must_be_positive():
    with pytest.raises(SpecError, match="must be positive"):
        MathReward(30, limit=0)
