"""The random-walks recipe: its graph, its reward by hand, its stages, and that a run of it learns short ways."""

import itertools
import typing
from types import SimpleNamespace

import pytest

from penstock.cli.recipe import build
from penstock.recipes import randomwalks as recipe
from penstock.recipes.randomwalks import BETAS, GOAL, LONGEST, NODES, contests, distances, graph, optimality_of, walks
from penstock.runtime import launch
from tiers import LANGUAGE

# d → c → b → a, and the detour d → e → d.
EDGES = {"a": "b", "b": "a", "c": "b", "d": "ce", "e": "d"}


def test_distances_are_edges_to_the_goal():
    assert distances(EDGES) == {"a": 0, "b": 1, "c": 2, "d": 3, "e": 4}


def test_a_node_that_cannot_arrive_has_no_distance():
    assert distances({"a": "b", "b": "b", "c": "a"}) == {"a": 0, "c": 1}


@pytest.mark.parametrize(
    ("walk", "reward"),
    [
        ("dcba", 1.0),
        ("dedcba", 3 / 5),  # the detour costs two edges
        ("ba", 1.0),
        ("dcb", 0.0),  # does not arrive
        ("dba", 0.0),  # no such edge
        ("baba", 0.0),  # walks on after it has arrived
        ("b", 0.0),  # no step at all
        ("d?ba", 0.0),  # no node
        ("", 0.0),
    ],
)
def test_optimality_by_hand(walk, reward):
    assert optimality_of(walk, EDGES) == pytest.approx(reward)


def test_every_node_of_the_graph_reaches_the_goal_and_the_graph_is_a_function_of_its_seed():
    edges = graph(2)
    assert list(edges) == list(NODES)
    assert set(distances(edges)) == set(NODES)
    assert all(node not in there for node, there in edges.items())
    assert max(distances(edges).values()) <= LONGEST
    assert graph(2) == edges != graph(3)


def test_walks_follow_edges_and_end_at_the_goal_or_after_the_longest_walk():
    edges, rows = graph(2), walks(300, 0, 2)
    for row in rows:
        walk = row["start"] + row["rest"]
        assert all(there in edges[here] for here, there in itertools.pairwise(walk))
        assert walk[0] != GOAL
        assert walk.endswith(GOAL) or len(walk) == LONGEST + 1
        assert row["reward"] == optimality_of(walk, edges)
    rewards = [row["reward"] for row in rows]
    assert min(rewards) == 0
    assert max(rewards) == 1
    assert walks(300, 0, 2) == rows != walks(300, 1, 2)


def test_the_reward_joins_the_start_and_the_answer():
    shortest = next(there for there, steps in distances(graph(2)).items() if steps == 1)
    assert recipe.optimality(SimpleNamespace(text=GOAL), {"start": shortest}, 2) == 1.0
    assert {row["start"] for row in recipe.starts(2)} == set(NODES) - {GOAL}


def test_imitation_alone_is_one_stage():
    assert [stage.name for stage in recipe.randomwalks("sft").stages] == ["sft"]


def test_contests_are_won_by_a_best_walk_from_the_same_start():
    rows, most = contests(200, 0, 5), {}
    for row in walks(200, 0, 5):
        most[row["start"]] = max(most.get(row["start"], 0.0), row["reward"])
    assert len(rows) > 50
    for row in rows:
        better, worse = (optimality_of(row["start"] + row[name], graph(5)) for name in ("better", "worse"))
        assert better == most[row["start"]] > worse


def test_labels_tell_walks_apart_that_are_better_than_the_mean_of_their_start():
    rows = walks(400, 0, 5)
    for start in NODES[1:]:
        rewards = {
            label: [row["reward"] for row in rows if row["start"] == start and row["label"] == label] for label in (0, 1)
        }
        if rewards[0] and rewards[1]:
            assert max(rewards[0]) < min(rewards[1])
    assert {row["label"] for row in rows} == {0, 1}


def shortened(algorithm):
    """One step of imitation and one of the algorithm, measured on two nodes."""
    words = (
        f"--algorithm {algorithm} --size 60 --threads 1 --sft.model.layers 1 --sft.steps 1 --sft.batch 20 --{algorithm}.steps 1"
    )
    words += f" --sft.evaluation.data.size 2 --sft.evaluation.samples 1 --{algorithm}.steps 1"
    words += f" --{algorithm}.batch 4 --{algorithm}.evaluation.data.size 2 --{algorithm}.evaluation.samples 1"
    return build("randomwalks", words.split())


@pytest.mark.parametrize("algorithm", [name for name in typing.get_args(recipe.Algorithm) if name != "sft"])
def test_a_run_of_each_algorithm_starts_and_is_measured_by_optimality(algorithm, tmp_path):
    summary = launch(shortened(algorithm), tmp_path / "run").summary
    last = summary["stages"][algorithm]["last"]
    assert 0 <= last["evaluation/optimality"] <= 1
    assert summary["headline"].startswith("optimality 0.")
    shifted = {f"evaluation/beta={beta:g}/reward" for beta in BETAS} if algorithm == "ilql" else set()
    assert {name for name in last if name.startswith("evaluation/beta") and name.endswith("/reward")} == shifted


@pytest.mark.learning(*LANGUAGE)
def test_grpo_finds_the_shortest_ways(tmp_path):
    summary = launch(build("randomwalks", ["--algorithm", "grpo", "--threads", "1"]), tmp_path / "run").summary
    assert summary["stages"]["grpo"]["first"]["evaluation/reward"] < 0.4
    assert summary["stages"]["grpo"]["last"]["evaluation/reward"] > 0.95


@pytest.mark.learning(*LANGUAGE)
@pytest.mark.parametrize(("algorithm", "graph_seed", "measure"), [("dpo", 1, ""), ("ilql", 3, f"/beta={BETAS[-1]:g}")])
def test_given_walks_teach_short_ways_on_other_graphs_than_the_default(algorithm, graph_seed, measure, tmp_path):
    words = ["--algorithm", algorithm, "--graph-seed", str(graph_seed), "--threads", "1"]
    summary = launch(build("randomwalks", words), tmp_path / "run").summary
    assert summary["stages"]["sft"]["last"]["evaluation/reward"] < 0.3
    assert summary["stages"][algorithm]["last"][f"evaluation{measure}/reward"] > 0.87
