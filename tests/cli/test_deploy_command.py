"""``penstock deploy``: what is printed can be taken as it is, and what cannot be is one line."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from cli_examples import RECIPES, Penstock

POD = "--image penstock:1 --claim runs"
CASES = {
    "": ("--target is missing: rayjob, trainjob, jobset or slurm",),
    "--target pod": ("invalid choice 'pod'", "--target"),
    "--target jobset": ("--image is missing", "docker build"),
    "--target jobset --image penstock:1": ("the run would end with its pod", "--claim NAME"),
    f"--target rayjob {POD}": ('runtime="local"', "add --runtime ray"),
    f"--target rayjob {POD} --runtime ray": ("--secret is missing", "auth_token"),
    f"--target jobset {POD} --gpus 8": ("--gpus 8 would be left alone", "add --device cuda"),
    f"--target jobset {POD} --env HF_TOKEN=hf_abc": ("put it into a Secret", "--secret NAME"),
    f"--target jobset {POD} --imge x": ("unknown flag --imge", 'did you mean "--image"'),
    f"--target jobset {POD} --grpo.stepz 3": ('unknown field "stepz"', 'did you mean "steps"'),
    f"--target jobset {POD} --nodes many": ("--nodes", "'many'"),
}


@pytest.mark.parametrize("line", CASES)
def test_a_mistake_is_answered_in_one_line(line: str, penstock: Penstock, tmp_path: Path) -> None:
    answer = penstock("deploy", f"{RECIPES}:tiny", *line.split())
    answer.assert_refused(*CASES[line])
    assert answer.out == ""
    assert "hf_abc" not in answer.err
    assert list(tmp_path.iterdir()) == []


def test_the_manifest_of_a_run_and_of_its_run_json_is_the_same(penstock: Penstock, finished: Path) -> None:
    line = f"--target jobset {POD} --name tiny".split()
    of_recipe, of_run = (penstock("deploy", recipe, *line) for recipe in (f"{RECIPES}:tiny", str(finished / "run.json")))
    assert of_recipe.code == of_run.code == 0
    assert of_recipe.out == of_run.out
    assert [one["kind"] for one in yaml.safe_load_all(of_run.out)][-1] == "JobSet"


def test_apply_without_kubectl_says_what_is_missing(
    penstock: Penstock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    line = f"deploy {RECIPES}:tiny --target jobset {POD} --apply".split()
    penstock(*line).assert_refused("--apply needs kubectl on the PATH")
