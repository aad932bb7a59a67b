"""The example of networks and accelerators: its costs by hand, its limits, and its controller over a real small trainer."""

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gymnasium")
pytest.importorskip("sklearn")

NASAIC = Path(__file__).parents[2] / "examples" / "nasaic"
sys.path.insert(0, str(NASAIC))

from costs import Accelerator, Cost, Layer, cycles_and_traffic, design_cost, layer_cost  # noqa: E402
from design import CHOICES, Designing, Problem  # noqa: E402

LAYER = Layer(2, 4, 3, 8)
"""72 weights, 200 inputs with their rim, 256 outputs, 4,608 operations."""


@pytest.mark.parametrize(
    ("accelerator", "cycles", "traffic"),
    [
        (Accelerator("dla", 8, 4), 576, 72 + 200 + 256),  # all channels at once: each value once
        (Accelerator("dla", 4, 4), 1152, 72 + 2 * 200 + 2 * 256),  # half of them: inputs and sums twice
        (Accelerator("shi", 64, 4), 72, 72 + 200 * 4 / 3 + 256),  # all pixels at once
        (Accelerator("shi", 16, 4), 288, 4 * 72 + 200 * 4 / 3 + 256),  # a quarter: weights four times
        (Accelerator("rs", 192, 4), 24, 72 + 200 + 256),  # 24 rows for each of 8 channels
        (Accelerator("rs", 24, 4), 192, 72 + 4 * 200 + 256),
    ],
)
def test_cycles_and_traffic_of_a_dataflow_by_hand(accelerator, cycles, traffic):
    assert cycles_and_traffic(LAYER, accelerator) == (cycles, pytest.approx(traffic))


def test_a_layer_takes_as_long_as_the_slower_of_computing_and_moving():
    assert layer_cost(LAYER, Accelerator("dla", 8, 4))[0] == 576
    assert layer_cost(LAYER, Accelerator("shi", 64, 1))[0] == pytest.approx(72 + 200 * 4 / 3 + 256)


def test_energy_is_of_operations_buffer_and_dram():
    assert layer_cost(LAYER, Accelerator("dla", 8, 4))[1] == 4608 + 6 * 528 + 200 * (200 + 72 + 256)


def test_networks_are_shared_out_so_that_the_last_one_ends_soonest():
    fast, slow = Accelerator("dla", 8, 64), Accelerator("dla", 1, 64)
    both = design_cost([[LAYER], [LAYER]], [fast, slow])
    assert both.latency == 2 * 576  # one after the other on the fast one, since the slow one takes eight times as long
    assert both.area == 8 + 1 + 2 * 4 * 64
    assert design_cost([[LAYER], [LAYER]], [fast, fast]).latency == 576


def test_what_is_above_a_limit_counts_as_a_share_of_it():
    limits = Cost(100, 100, 100)
    assert Cost(150, 100, 20).over(limits) == pytest.approx(0.5)
    assert Cost(100, 100, 100).over(limits) == 0


def test_a_design_that_breaks_a_limit_is_not_trained_and_loses():
    problem = Problem("W1", lambda *_: pytest.fail("it was trained"))
    largest = [options - 1 for options in CHOICES]
    worth = problem.worth(largest)
    assert worth.over > 0
    assert worth.accuracies is None
    assert worth.reward < 0


def test_choices_are_masked_to_their_options_and_the_last_one_is_rewarded(tmp_path):
    made = Designing(4, "W1", str(tmp_path / "accuracies.json"))
    made.problem.accuracies = lambda task, widths: 0.75
    _, infos = made.reset()
    for step, options in enumerate(CHOICES):
        assert (infos["action_mask"].sum(1) == options).all()
        shown, reward, over, _, infos = made.step(np.zeros(4, int))
        assert over.all() == (step == len(CHOICES) - 1)
    assert len(made.log) == 4
    assert reward.tolist() == [pytest.approx(worth.reward) for _, worth in made.log]
    assert shown[:, 0].tolist() == [1.0] * 4


def test_a_controller_makes_designs_of_which_those_within_limits_are_really_trained(tmp_path, monkeypatch):
    import search

    monkeypatch.setattr(search, "BATCHES", 3)
    found = search.controlled("W2", 0, tmp_path / "accuracies.json")
    assert len(found) == 3 * search.SIDE_BY_SIDE
    feasible = [worth for _, worth in found if worth.over == 0]
    assert all(0.05 < accuracy < 1 for worth in feasible for accuracy in worth.accuracies)
    assert feasible
