"""Learning rates, worked out by hand."""

import pytest

from penstock.config.run import LearnerSpec
from penstock.train.optimizer import rate_at


@pytest.mark.parametrize(
    ("schedule", "warmup", "step", "expected"),
    [
        ("constant", 0, 0, 1.0),
        ("constant", 0, 99, 1.0),
        ("constant", 4, 0, 0.25),
        ("constant", 4, 3, 1.0),
        ("linear", 0, 0, 1.0),
        ("linear", 0, 5, 0.55),  # halfway from 1 to a tenth
        ("linear", 0, 10, 0.1),
        ("linear", 2, 2, 1.0),
        ("linear", 2, 6, 0.55),
        ("cosine", 0, 0, 1.0),
        ("cosine", 0, 5, 0.55),
        ("cosine", 0, 10, 0.1),
        ("cosine", 2, 4, 0.1 + 0.9 * 0.8535533905932737),  # (1 + cos(pi / 4)) / 2
        ("cosine", 0, 12, 0.1),  # beyond the end it stays
        ("linear", 20, 10, 0.55),  # a warm-up longer than the run
    ],
)
def test_rate_of_a_run_of_ten_steps(schedule, warmup, step, expected):
    name = schedule if schedule == "constant" else f"{schedule}_with_min_lr"
    spec = LearnerSpec(learning_rate=1.0, schedule=name, warmup=warmup)
    assert rate_at(spec, step, 10) == pytest.approx(expected)


@pytest.mark.parametrize(("schedule", "halfway"), [("linear", 0.5), ("cosine", 0.5), ("constant", 1.0)])
def test_a_decay_ends_at_0_unless_asked_otherwise(schedule, halfway):
    spec = LearnerSpec(learning_rate=1.0, schedule=schedule)
    assert rate_at(spec, 5, 10) == pytest.approx(halfway)
    assert rate_at(spec, 10, 10) == pytest.approx(float(schedule == "constant"), abs=1e-12)
