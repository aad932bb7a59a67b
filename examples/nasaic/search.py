"""Networks and accelerator together, under limits of latency, energy and area: a controller trained by policy gradient, next to
random, evolutionary and sequential search with as many designs.

    python examples/nasaic/search.py --seeds 5

After Yang et al. 2020 ("Co-Exploration of Neural Architectures and Heterogeneous ASIC Accelerator Designs Targeting Multiple
Tasks", arXiv 2002.04116). Networks are really trained, costs are a model's; results go into results.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from design import CHOICES, NETWORKS, Problem, Worth  # noqa: E402
from workloads import WIDTHS, WORKLOADS, Accuracies, best_widths  # noqa: E402

from penstock.algos.entropy import EntropyBonus  # noqa: E402
from penstock.algos.ppo import PPO  # noqa: E402
from penstock.config.learner import LearnerSpec  # noqa: E402
from penstock.config.run import Run  # noqa: E402
from penstock.control.stage import Control, EnvironmentsSpec, PolicyNetwork  # noqa: E402
from penstock.runtime import launch  # noqa: E402

SIDE_BY_SIDE, BATCHES = 64, 60
DESIGNS = SIDE_BY_SIDE * BATCHES
FOUND = list[tuple[tuple[int, ...], Worth]]


def controlled(workload: str, seed: int, file: Path) -> FOUND:
    """Designs of a controller that PPO trains: one fragment is one design of each environment."""
    stage = Control(
        name="controller",
        environments=EnvironmentsSpec(
            id=f"{HERE}/design.py:designing", count=SIDE_BY_SIDE, options={"workload": workload, "file": str(file)}
        ),
        model=PolicyNetwork(hidden=(128,), activation="relu"),
        algorithm=PPO(discount=0.999, lam=1.0, value_clip=0.0, value_coefficient=0.5, entropy=EntropyBonus(coefficient=0.1)),
        learner=LearnerSpec(learning_rate=1e-3, clip_norm=0.5),
        fragment=len(CHOICES),
        epochs=2,
        minibatches=2,
        steps=BATCHES,
        evaluation=None,
    )
    with tempfile.TemporaryDirectory() as folder:
        launch(Run(name="nasaic", seed=seed, device="cpu", threads=1, stages=(stage,)), Path(folder) / "run")
    log: FOUND = _designing().MADE.pop().log
    return log[:DESIGNS]


def _designing() -> Any:
    """The module as the run has loaded it."""
    loaded = [module for module in list(sys.modules.values()) if getattr(module, "__file__", None) == str(HERE / "design.py")]
    return next(module for module in loaded if getattr(module, "MADE", None))


def random_search(problem: Problem, seed: int) -> FOUND:
    """Designs of uniform choices."""
    generator = np.random.default_rng(seed)
    return [(key, problem.worth(key)) for key in (tuple(generator.integers(CHOICES).tolist()) for _ in range(DESIGNS))]


def evolved(problem: Problem, seed: int, living: int = 64, sample: int = 16) -> FOUND:
    """Regularised evolution (Real et al. 2019, arXiv 1802.01548): the best of a sample has a child with one changed choice, and
    the oldest goes."""
    generator = np.random.default_rng(seed)
    found: FOUND = []
    population: deque[tuple[tuple[int, ...], Worth]] = deque(maxlen=living)
    while len(found) < DESIGNS:
        if len(population) < living:
            key = tuple(generator.integers(CHOICES).tolist())
        else:
            taken = [population[at] for at in generator.choice(living, sample, replace=False)]
            parent = list(max(taken, key=lambda one: one[1].reward)[0])
            at = int(generator.integers(len(CHOICES)))
            parent[at] = int(generator.integers(CHOICES[at]))
            key = tuple(parent)
        population.append((key, problem.worth(key)))
        found.append(population[-1])
    return found


def sequential(problem: Problem, seed: int) -> FOUND:
    """Networks first, by accuracy alone, then the accelerator that breaks the limits least, of as many designs."""
    widths = [best_widths(task, problem.accuracies) for task in problem.tasks]
    networks = tuple(WIDTHS.index(width) for one in widths for width in one)
    generator = np.random.default_rng(seed)
    options = CHOICES[NETWORKS:]
    keys = [(*networks, *generator.integers(options).tolist()) for _ in range(DESIGNS)]
    return sorted(((key, problem.worth(key)) for key in keys), key=lambda one: one[1].over)


def summary(found: FOUND, problem: Problem) -> dict[str, Any]:
    """The best design that meets all limits, or the one that breaks them least; and how many met them."""
    feasible = [worth for _, worth in found if worth.over == 0]
    best = max(feasible, key=lambda worth: worth.accuracy) if feasible else min((w for _, w in found), key=lambda w: w.over)
    cost, limits = best.cost, problem.limits
    shares = [cost.latency / limits.latency, cost.energy / limits.energy, cost.area / limits.area]
    curve = np.maximum.accumulate([worth.accuracy for _, worth in found])
    late = found[-len(found) // 10 :]
    return {
        "meets": best.over == 0, "accuracies": best.accuracies, "accuracy": best.accuracy, "of_limits": shares,
        "feasible": len(feasible) / len(found), "feasible_late": sum(w.over == 0 for _, w in late) / len(late),
        "curve": curve[:: max(1, len(curve) // 60)].tolist(),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--accuracies", type=Path, default=Path("accuracies.json"), help="trained networks are remembered here")
    parser.add_argument("--out", type=Path, default=Path("results.json"))
    given = parser.parse_args()
    accuracies = Accuracies(given.accuracies)
    results: dict[str, Any] = {}
    for workload in given.workloads.split(","):
        problem = Problem(workload, accuracies)
        free = [accuracies(task, best_widths(task, accuracies)) for task in problem.tasks]
        results[workload] = {"tasks": problem.tasks, "without limits": free, "limits": vars(problem.limits)}
        for seed in range(given.seeds):
            ways = {
                "controller": controlled(workload, seed, given.accuracies.resolve()),
                "random": random_search(problem, seed),
                "evolution": evolved(problem, seed),
                "sequential": sequential(problem, seed),
            }
            for name, found in ways.items():
                results[workload].setdefault(name, []).append(summary(found, problem))
                last = results[workload][name][-1]
                shares = ", ".join(f"{share:.2f}" for share in last["of_limits"])
                line = (
                    f"{workload} seed {seed} {name:<11} meets {last['meets']!s:<5} accuracy {last['accuracy']:.4f}  of limits"
                )
                print(f"{line} {shares}  feasible {last['feasible']:.1%}, late {last['feasible_late']:.1%}", flush=True)
        given.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
