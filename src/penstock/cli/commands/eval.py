"""``penstock eval RUN`` or ``penstock eval RECIPE --model FOLDER``: measure a model on held-out prompts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional

from penstock.cli.command import called, flags_of
from penstock.cli.commands.generate import model_path
from penstock.cli.recipe import RecipeCommand, build
from penstock.core.errors import SpecError

if TYPE_CHECKING:
    from penstock.config.run import Run


@dataclass(kw_only=True)
class Eval(RecipeCommand):
    """Measure a model on the held-out prompts and rewards of a stage's evaluation.

    The model is that of a run, or any folder by a recipe, whose fields are flags too (penstock train RECIPE --help).
    """

    recipe: Positional[Annotated[str, called("RUN|RECIPE")]] = ""
    """A run's folder, such as runs/NAME; a built-in recipe (penstock recipes lists them); or FILE.py:FUNCTION."""
    model: Annotated[str, called("FOLDER")] = ""
    """The model to measure (default: the run's)."""
    stage: Annotated[str, called("NAME")] = ""
    """The stage whose evaluation it is (default: the last that has one)."""

    def run(self) -> None:
        """Evaluate and print metrics and a few samples."""
        if not self.recipe:
            raise SpecError("eval takes a run or a recipe: penstock eval runs/NAME, or penstock eval RECIPE --model FOLDER")
        from penstock.runtime.measuring import measure, pick

        folder = Path(self.recipe)
        made, model = self.measured(folder)
        metrics, groups = measure(pick(made, self.stage), made, folder, model)
        for name, value in metrics.items():
            print(f"{name.removeprefix('evaluation/'):<24}{value:.4g}")
        for group in groups[:5]:
            print(f"  {group.prompt.text!r} → {group.samples[0].text!r}  reward {group.samples[0].reward}")

    def measured(self, folder: Path) -> tuple[Run, str]:
        """The run whose evaluation it is, and the model. Raises SpecError."""
        if (folder / "run.json").exists():
            from penstock.runtime.folder import RunFolder

            if self.flags:
                raise SpecError(f'"{self.flags[0]}": a run is evaluated as it was made; give a recipe to change fields')
            return RunFolder(folder).read(), self.model or model_path(str(folder))
        if folder.is_dir() or (len(folder.parts) > 1 and ":" not in self.recipe):
            raise SpecError(f"{folder}: no run.json here; this is not a run folder")
        made = build(self.recipe, self.flags, known=flags_of(Eval))
        if not self.model:
            raise SpecError(f"name the model to evaluate: penstock eval {self.recipe} --model FOLDER")
        return made, self.model
