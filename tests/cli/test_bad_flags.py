"""Mistakes on the command line: one line that names the flag, exit code 2, and no folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_examples import RECIPES, Penstock

CASES = {
    "trian": ('unknown command "trian"', 'did you mean "train"'),
    "train quikstart": ('unknown recipe "quikstart"', 'did you mean "quickstart"'),
    "train quickstart.py": ("quickstart.py:FUNCTION",),
    "train": ("name a recipe",),
    "train --seed 3 quickstart": ('name a recipe before "--seed"',),
    "train quickstart extra": ('"extra" is not a flag',),
    "train quickstart -x 3": ('"-x" is not a flag',),
    "train quickstart --stepz 3": ("unknown flag --stepz", 'did you mean "--steps"'),
    "train quickstart --grpo.lerner.rate 3": ('--grpo.lerner.rate: unknown field "lerner"', 'did you mean "learner"'),
    "train quickstart --grpo.learner.rate 3": ('unknown field "rate"', "learning_rate"),
    "train quickstart --grpo 3": ("--grpo is a stage", "--grpo.steps 3"),
    "train quickstart --grpo. 3": ("--grpo is a stage",),
    "train quickstart --batch 3": ("--sft.batch or --grpo.batch",),
    "train quickstart --grpo.steps x": ("--grpo.steps", "steps='x' is not an integer"),
    "train quickstart --seed abc": ("--seed", "'abc'", "see penstock train quickstart --help"),
    "train quickstart --steps 1.5": ("--steps", "'1.5'"),
    "train quickstart --grpo.learner.learning_rate=-1": ("--grpo.learner.learning_rate", "give a positive rate"),
    "train quickstart --grpo.learner.schedule round": ("schedule='round' is not one of", "'cosine'"),
    "train quickstart --grpo.learner.share_prefix 3": ("share_prefix=3 is not a boolean",),
    "train quickstart --grpo.learner.optimizer.betas 0.9 0.8": ("needs exactly one value, got 2", "'[1, 2]'"),
    "train quickstart --seed": ("Missing value", "--seed"),
    "train quickstart --grpo.steps": ("--grpo.steps needs exactly one value",),
    "train quickstart --name": ("Missing value", "--name"),
    "train gsm8k": ("Missing", "--model STR folder or hub name"),
    "train hh": ("Missing", "--data STR FILE.jsonl or FILE.jsonl.gz with the dialogues chosen and rejected"),
    "train quickstart --device gpu": ("device='gpu' is not one of",),
    "train quickstart --grpo.samples 1": ("grpo: samples=1 is undefined for GRPO", "samples=2"),
    "train quickstart --grpo.max_lag 1 --grpo.algorithm.clip null": ("max_lag=1 needs a clipped loss",),
    "train quickstart --grpo.sampling.temperature 0": ("temperature=0 explores nothing",),
    "train quickstart --grpo.learner.strategy FSDP2 --grpo.learner.strategy.ranks 3 "
    "--grpo.learner.strategy.tensor_parallel 3": (
        "grpo: strategy.tensor_parallel=3 does not divide the model's num_attention_heads=4",
    ),
    "explain quickstart --grpo.learner.strategy FSDP2 --grpo.learner.strategy.ranks 4 "
    "--grpo.learner.strategy.tensor_parallel 4": (
        "grpo: strategy.tensor_parallel=4 does not divide the model's num_key_value_heads=2",
    ),
    "train quickstart --grpo.learner.strategy FSDP2 --grpo.learner.strategy.ranks 3 "
    "--grpo.learner.strategy.sequence_parallel 3": (
        "grpo: strategy.sequence_parallel=3 does not divide the model's 4 attention heads; set one of 1, 2, 4",
    ),
    "train quickstart --grpo.batch 32 --grpo.minibatches 5": ("batch=32 does not divide into minibatches=5",),
    "train sentiment --data x --ppo.learner.critic none": ("PPO needs a critic", "learner.critic=shared or separate"),
    "train quickstart --checkpoint.keep 0": ("checkpoint.keep=0",),
    "train --resume nowhere --seed 3": ('"--seed" would change the run',),
    "train --resume nowhere": ("nowhere: no run.json here",),
    "recipes more": ('penstock recipes takes no "more"',),
    "explain": ("name a recipe: penstock explain",),
    "explain quikstart": ('unknown recipe "quikstart"',),
    "report": ("Missing from penstock report: RUN",),
    "report .": (".: no run.json here",),
    "report . --opne": ("unknown flag --opne",),
    "eval": ("eval takes a run or a recipe",),
    "eval runs/nowhere": ("runs/nowhere: no run.json here",),
    "eval quickstart": ("name the model to evaluate", "--model FOLDER"),
    "eval chat_preferences --data x --model x": ("no stage has an evaluation of samples", "EvaluationSpec"),
    "generate": ("Missing from penstock generate: MODEL",),
    "generate model": ("--prompt TEXT or --prompts FILE.txt",),
    "generate ./nowhere --prompt x": ("nowhere: no such folder",),
    "generate m --promt x": ("unknown flag --promt", 'did you mean "--prompt"'),
    "generate m --prompt x --samples 0": ("--samples=0",),
    "generate m --prompt x --samples many": ("--samples", "'many'"),
    "generate m --prompt x --temperature=-1": ("temperature=-1.0 is negative",),
    "generate m --prompt x --prompts y": ("not both",),
    "generate m --prompts nowhere.txt": ("nowhere.txt: no such file",),
    "generate m --prompt x --device gpu": ("invalid choice 'gpu'", "--device", "'cpu'"),
}


@pytest.mark.parametrize("line", CASES)
def test_a_mistake_is_answered_in_one_line(line: str, penstock: Penstock, tmp_path: Path) -> None:
    penstock(*line.split()).assert_refused(*CASES[line])
    assert list(tmp_path.iterdir()) == []


def test_cuda_without_a_gpu(penstock: Penstock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    penstock("train", f"{RECIPES}:tiny", "--device", "cuda").assert_refused("device=cuda", "set device=cpu")
    assert list(tmp_path.iterdir()) == []


RECIPE_FILES = {
    "syntax": ("def recipe(:\n", ("recipe.py", "SyntaxError", "line 1")),
    "missing": ("def other(): pass\n", ('has no "recipe"', "other")),
    "no function": ("recipe = 3\n", ("is int, not a function",)),
    "no run": ("def recipe(): return 5\n", ("returned int, not a Run",)),
    "raises": ("def recipe():\n    return 1 / 0\n", ("ZeroDivisionError", "recipe.py:2")),
    "fails to import": ("import nowhere_at_all\n", ("nowhere_at_all",)),
    "needs a value": ("def recipe(width: int): pass\n", ("Missing", "--width", "recipe.py:recipe --help")),
    "no type": ("def recipe(width): pass\n", ("width",)),
    "unknown annotation": ("def recipe(width: 'Wide'): pass\n", ("Wide",)),
    "a type no flag has": ("def recipe(width: type = int): return width\n", ("width",)),
}


@pytest.mark.parametrize("case", RECIPE_FILES)
def test_a_recipe_file_that_cannot_be_used(case: str, penstock: Penstock, tmp_path: Path) -> None:
    text, parts = RECIPE_FILES[case]
    (tmp_path / "recipe.py").write_text(text)
    flags = ["--width", "3"] if "type" in case else []
    penstock("train", "recipe.py:recipe", *flags).assert_refused(*parts)
    assert not (tmp_path / "runs").exists()


def test_a_recipe_file_that_is_not_there(penstock: Penstock) -> None:
    penstock("train", "nowhere.py:recipe").assert_refused("nowhere.py")


def test_flags_may_be_possible_only_together(penstock: Penstock) -> None:
    shown = penstock("explain", f"{RECIPES}:tiny", "--grpo.minibatches", "5", "--grpo.batch", "30")
    assert shown.code == 0
    assert "4 batches × 5 = 20" in shown.out


def test_a_recipes_flags_may_be_any_plain_type(penstock: Penstock, tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(
        "from pathlib import Path\n"
        "def recipe(a: int, b: float, c: str, f: list[int], g: Path, h=3, d=False, e=True, *, i: int | None = 4):\n"
        "    raise ValueError(repr((a, b, c, d, e, f, g.name, h, i)))\n"
    )
    words = ["--a", "1", "--b", "2", "--c", "3", "--d", "--no-e", "--f", "4", "5", "--g", "x/y", "--h", "6", "--i", "None"]
    penstock("train", "plain.py:recipe", *words).assert_refused("(1, 2.0, '3', True, False, [4, 5], 'y', 6, None)")


NO_RECIPES = {
    "a reward": ("def reward(sample, columns): return 1.0\n", "reward", "is a function of (sample, columns), and no recipe"),
    "another value": ("def size() -> int: return 3\n", "size", "returned int, not a Run"),
    "a class": ("class Thing: pass\n", "Thing", "is a class, and no recipe"),
}


@pytest.mark.parametrize("case", NO_RECIPES)
def test_what_is_no_recipe_is_named_with_what_it_is(case: str, penstock: Penstock, tmp_path: Path) -> None:
    text, name, said = NO_RECIPES[case]
    (tmp_path / "mine.py").write_text(text)
    penstock("check", f"mine.py:{name}").assert_refused(said, "name a function that returns a Run")
