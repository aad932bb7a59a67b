"""Mathematical equality in a process that may be killed."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from reward_examples import make_group, make_sample, score

from penstock.config.run import RewardSpec
from penstock.core.errors import RewardError, SpecError
from penstock.rewards.answers import statement
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


CASES = {
    "hendrycks/math: the last box": [
        ("7", r"\boxed{5}. Wait, no: \boxed{7}", 1),
        ("5", r"\boxed{5}. Wait, no: \boxed{7}", 0),
        ("5", r"\boxed{5} and then \boxed{", 0),
        ("5", r"It is \boxed{5", 0),
        ("5", r"\boxed{}", 0),
        ("5", r"First \boxed{4}." "\n\n" r"So \boxed{5}", 1),
        ("5", r"\boxed{5}" "\n\n" r"\boxed{5}", 1),
        ("2", r"so $\boxed 2$ it is", 1),
        ("\\frac{1}{2}", r"$\boxed{\frac{1}{2}}$", 1),
        ("7", r"\boxed{x = 7}", 1),
        ("7", r"The answer is 8, no: \boxed{7}", 1),
        ("So $x=3$ and \\boxed{12}.", r"\boxed{12}", 1),
    ],
    "boxes that one statement joins are a set": [
        ("1,2", r"\boxed{1} and \boxed{2}", 1),
        ("\\{1, 2\\}", r"$\boxed{2}, \boxed{1}$", 1),
        ("2", r"\boxed{1} and \boxed{2}", 0),
        ("2", r"\boxed{1} or \boxed{2}", 0),
        ("1, 2", r"$x=\boxed{1}$ or $x=\boxed{2}$", 1),
        ("1,2", r"\boxed{1}. Therefore \boxed{2}", 0),
    ],
    "openai/gsm8k: money, separators, units, ####": [
        ("$18", r"\$18.", 1),
        ("18", "She makes $18.", 1),
        ("18", "She makes $18 every day.", 1),
        ("18", "The answer is $18.00", 1),
        ("1,072", "1072", 1),
        ("70000", "The answer is 70,000 dollars.", 1),
        ("1000000", r"\boxed{1{,}000{,}000}", 1),
        ("10000", r"\boxed{10\,000}", 1),
        ("72", "#### 72", 1),
        ("72", "Therefore, x = 72.", 1),
        ("72", "**Answer:** 72", 1),
        ("72", "**Final Answer**\n\n72", 1),
        ("4", "5 apples minus 1 gives 5 - 1 = 4", 1),
        ("5", "5 apples minus 1 gives 5 - 1 = 4", 0),
        ("18", "The answer is €18", 1),
        ("$18", "The answer is €18", 0),
        ("100", "The total is 100 100", 0),
    ],
    "percent and degrees": [
        ("50\\%", r"\boxed{50}", 1),
        ("50", r"\boxed{50\%}", 1),
        ("50\\%", r"\boxed{0.5}", 1),
        ("50", r"\boxed{0.5}", 0),
        ("50\\%", r"\boxed{5000\%}", 0),
        ("90^\\circ", r"\boxed{90}", 1),
        ("90", r"\boxed{90^\circ}", 1),
        ("90", r"90 degrees", 1),
        ("12 \\text{ cm}", r"\boxed{12}", 1),
        ("12", r"\boxed{12\text{ cm}^2}", 1),
        ("12 \\text{ cm}", r"\boxed{12\mathrm{~m}}", 0),
        ("5", r"\boxed{5t}", 0),
        ("5t", r"\boxed{5}", 0),
    ],
    "fractions, powers, mixed numbers": [
        ("\\frac12", r"\boxed{\dfrac{1}{2}}", 1),
        ("\\frac{1}{2}", r"The answer is \frac12.", 1),
        ("0.5", r"$\frac12$", 1),
        ("7/2", r"\boxed{3\frac{1}{2}}", 1),
        ("3/2", r"\boxed{3\frac{1}{2}}", 0),
        ("3 1/2", "3.5", 1),
        ("7/2", "It takes 3 1/2 cups", 1),
        ("1/2", "It takes 3 1/2 cups", 0),
        ("10^{100}", "10^{100}", 1),
        ("10", "10^{100}", 0),
        ("10", "The answer is 10^{100}.", 0),
        ("100", "so we get 10^{100} grains", 0),
        ("1/3", "0.333333", 1),
        ("1/3", "0.3333", 0),
        ("0", "0.0000001", 0),
        ("10^{-7}", "0", 0),
        ("2", "2.0000001", 0),
        ("0.1", "1/10", 1),
        ("1.5 \\times 10^3", "1500", 1),
        (".5", "0.5", 1),
        ("\\sqrt{2}", "1.414214", 1),
        ("\\sqrt{2}", "1.41", 0),
        ("2\\pi", r"\boxed{2π}", 1),
    ],
    "times and ratios": [
        ("12:30", "12:30", 1),
        ("12", "12:30", 0),
        ("12", "It is at 12:30", 0),
        ("30", "It is at 12:30.", 0),
        ("12:30", r"\boxed{12:30 \text{ p.m.}}", 1),
        ("3:2", r"\boxed{3 : 2}", 1),
        ("3:2", r"\boxed{2:3}", 0),
    ],
    "intervals, tuples, sets": [
        ("[0,1)", r"\boxed{0 \le x < 1}", 1),
        ("[0,1)", "$0 \\le x < 1$", 1),
        ("[0,1)", r"\boxed{0 < x < 1}", 0),
        ("[0,1)", r"\boxed{[0,1]}", 0),
        ("(2,\\infty)", r"\boxed{x > 2}", 1),
        ("(-\\infty,2]", r"\boxed{x \leq 2}", 1),
        ("x \\in [0,1)", r"\boxed{\left[0, 1\right)}", 1),
        ("(-\\infty,1)\\cup(2,\\infty)", r"\boxed{x<1 \text{ or } x>2}", 1),
        ("(1,2)", r"\boxed{(2,1)}", 0),
        ("(1,2)", r"\boxed{\{1,2\}}", 0),
        ("(1,2,3)", r"\boxed{(1, 2, 3)}", 1),
        ("\\{1,2,3\\}", r"\boxed{3, 1, 2}", 1),
        ("1,2,3", r"\boxed{1,2}", 0),
        ("(100,200)", r"\boxed{(100, 200)}", 1),
        ("\\pm 2", r"\boxed{2, -2}", 1),
        ("\\pm 2", r"\boxed{2}", 0),
        ("x=1, y=2", r"\boxed{y=2, x=1}", 1),
        ("x=1, y=2", r"\boxed{x=2, y=1}", 0),
        ("-1", "x < -1", 0),
    ],
    "choices and words": [
        ("B", "B", 1),
        ("B", "(B)", 1),
        ("B", r"\boxed{\text{B}}", 1),
        ("B", r"\boxed{\textbf{(B)}\ 12}", 1),
        ("(B)", "The answer is B.", 1),
        ("\\text{(B)}", "The answer is (B) 12.", 1),
        ("B", "C", 0),
        ("B", "b", 0),
        ("E", "2.718281828", 0),
        ("B", r"\boxed{(A) \text{ and } (B)}", 0),
        ("\\text{Tuesday}", "The answer is Tuesday.", 1),
        ("Tuesday", r"\boxed{\text{Tuesday}}", 1),
        ("Tuesday", r"\boxed{\text{Tuesyad}}", 0),
        ("BAC", r"\boxed{ABC}", 0),
        ("\\text{east side}", r"\boxed{\text{East side}}", 1),
    ],
    "algebra": [
        ("x^2+2x+1", r"\boxed{(x+1)^2}", 1),
        ("y = 2x+1", r"\boxed{2x+1}", 1),
        ("2x+1", r"\boxed{y = 1 + 2x}", 1),
        ("x=1", r"\boxed{y=1}", 0),
        ("5", r"\boxed{x+2=5}", 0),
        ("x^2+1=0", r"\boxed{x^2+2=0}", 0),
        ("2x+y=5", r"\boxed{4x+2y=10}", 1),
        ("x+1", "so we get x + 1", 1),
        ("1", "so we get x + 1", 0),
        ("2", "so we get 2 x", 0),
        ("2", "so we get 2xy", 0),
        ("24", "48/2 = 24", 1),
        ("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", r"\boxed{\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}}", 1),
        ("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", r"\boxed{\begin{pmatrix} 1 & 2 \\ 4 & 3 \end{pmatrix}}", 0),
        ("120", "$5!$", 1),
        ("2xy", r"\boxed{2yx}", 1),
        ("3, 5, 7", "The answers are $3$, $5$ and $7$.", 1),
        ("17", "The answer is\n\n\\[\n17\n\\]", 1),
        ("4", r"\boxed{\text{4 apples}}", 1),
    ],
    "bases": [
        ("11_2", r"\boxed{11_{2}}", 1),
        ("11", r"\boxed{11_2}", 0),
        ("11_2", r"\boxed{11}", 0),
    ],
    "a thought and an answer (DeepSeek-R1)": [
        ("5", r"<think>So \boxed{3}</think>The answer is 5.", 1),
        ("3", r"<think>So \boxed{3}</think>The answer is 5.", 0),
        ("5", r"<think>So \boxed{5}</think>", 0),
        ("5", r"<think>So \boxed{5}", 0),
        ("5", r"So 3? No.</think> \boxed{5}", 1),
        ("5", r"<think>3</think> <answer> 5 </answer>", 1),
        ("5", r"<answer>3</answer> or <answer>\boxed{5}</answer>.", 1),
    ],
}


@pytest.mark.parametrize(
    ("gold", "text", "right"),
    [pytest.param(*case, id=f"{name}-{at}") for name, cases in CASES.items() for at, case in enumerate(cases)],
)
def test_the_final_answer_is_read_and_compared_as_published_graders_mean_it(judge, gold, text, right):
    assert judge(make_sample(text), {"answer": gold}) == right


@pytest.mark.parametrize("answer", [["41", "43"], np.array([41.0, 43.0]), {"value": "43", "aliases": ["forty-three"]}])
def test_any_of_several_right_answers_is_right_in_mathematics(judge, answer):
    assert judge(make_sample("It is 43."), {"answer": answer}) == 1
    assert judge(make_sample("It is 42."), {"answer": answer}) == 0


@pytest.mark.parametrize("gold", ["proof", "notfound", "-", "nan", "\\text{notfound}"])
def test_a_mark_for_no_answer_is_an_error_of_the_row(judge, gold):
    with pytest.raises(RewardError, match="which is no answer"):
        judge(make_sample(gold), {"answer": gold})


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
        "judge(SimpleNamespace(text='1', raw_text='1'), {'answer': '1'})\n"
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


@pytest.mark.parametrize(("gold", "said", "right"), [
    (r"3 \pm \sqrt{2}", r"3+\sqrt{2}, 3-\sqrt{2}", 1), (r"3+\sqrt{2}, 3-\sqrt{2}", r"3 \pm \sqrt{2}", 1),
    (r"\pm 5", "5, -5", 1), ("(3,4)", "(x,y)=(3,4)", 1),
    (r"\mathbb{R}", r"(-\infty,\infty)", 1), (r"\emptyset", r"\varnothing", 1), ("5", "{5}", 1),
    ("5", r"\color{red}{5}", 1), ("1/2", "½", 1), ("x^2", "x²", 1), ("9", r"9 \ldots", 0), ("3", r"3 \pm 1", 0),
])  # fmt: skip
def test_one_answer_in_several_writings(judge, gold, said, right):
    assert judge(make_sample(f"\\boxed{{{said}}}"), {"answer": gold}) == right


def test_what_an_answer_is_to_be_given_as_is_not_the_answer():
    text = "Express the answer as a percentage: 90/450 * 100% = 20%\n\nSo the total is 20 dollars."
    assert statement(text) == "20"
