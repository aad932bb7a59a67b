"""From the command line to a run: a recipe is a function, its parameters are flags, and any leaf of its run can be set."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import pkgutil
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from tyro.conf import Positional

from penstock.cli.command import HELP, Command, called, flags_of, hinted, parse
from penstock.config.elsewhere import instead
from penstock.config.spec import field_types, suggestion
from penstock.core.errors import PenstockError, SpecError, blame

if TYPE_CHECKING:
    from penstock.config.run import Run

Recipe = Callable[..., "Run"]


@dataclass(kw_only=True)
class RecipeCommand(Command):
    """Base of the commands that take a recipe: its parameters and every field of its run are flags too."""

    recipe: Positional[Annotated[str, called("RECIPE")]] = ""
    """A built-in name (penstock recipes lists them), FILE.py:FUNCTION, or the run.json of a run."""
    flags: list[str] = dataclasses.field(default_factory=list, init=False)
    """Those that are not the command's own."""

    @classmethod
    def read(cls, words: Sequence[str], program: str) -> Self | None:
        """The recipe comes first, so that no value of a flag is taken for it."""
        first = is_named(words) or set(HELP) & set(words)
        found = parse(cls, words if first else ["", *words], program)
        if found is None:
            return None
        command: Self = found[0]
        command.flags = found[1]
        return command


@dataclass(kw_only=True)
class Placeable(RecipeCommand):
    """Base of the commands that say where a recipe's run lives."""

    generator: Annotated[str, called("ENGINE")] = ""
    """Generate with vllm, served or sglang instead of Penstock's own engine (docs/backends.md); generators become processes."""
    placement: Annotated[str, called("PLACEMENT")] = ""
    """What lands where in a Ray cluster (with --runtime ray): colocate, split (default) or FILE.toml."""

    def made(self) -> Run:
        """The run of the recipe and its flags. Raises SpecError."""
        if not self.recipe:
            before = f' before "{self.flags[0]}"' if self.flags else ""
            command = type(self).__name__.lower()
            raise SpecError(f"name a recipe{before}: penstock {command} quickstart (penstock recipes lists them)")
        from penstock.config.placing import placed

        return placed(build(self.recipe, self.flags, self.generator, flags_of(type(self))), self.placement)


def is_named(words: Sequence[str]) -> bool:
    """Whether the first word names something, and is no flag."""
    return bool(words) and not words[0].startswith("-")


def built_in() -> dict[str, Recipe]:
    """Name to function of the recipes that come with Penstock: a public function of the module of the same name."""
    import penstock.recipes as package

    names = [module.name for module in pkgutil.iter_modules(package.__path__) if not module.name.startswith("_")]
    return {name: getattr(importlib.import_module(f"penstock.recipes.{name}"), name) for name in names}


def find(name: str) -> Recipe:
    """The recipe of a built-in name, of ``FILE.py:FUNCTION`` or of a run's ``run.json``. Raises SpecError if there is none."""
    from penstock.data.resolve import is_reference, resolve

    known = built_in()
    if name in known:
        return known[name]
    if is_reference(name):
        return _recipe(resolve(name), name)
    if Path(name).name == "run.json":
        from penstock.runtime.folder import RunFolder

        def saved() -> Any:
            """The run that is saved in this file, as a new one."""
            return RunFolder(Path(name).parent).read()

        return saved
    if name.endswith(".py"):
        raise SpecError(f'"{name}" is a file; name the function in it that returns the run: {name}:FUNCTION')
    holds = {"run.json": "the folder of a run (its run.json is a recipe)", "config.json": "a model's folder"}
    if what := [what for file, what in holds.items() if (Path(name) / file).is_file()]:
        raise SpecError(f'"{name}" is {what[0]}, and no recipe; penstock.train(…) and penstock.check(…) in Python take a model')
    if Path(name).is_file():
        raise SpecError(f'"{name}" is a file of data, perhaps; a recipe names it in a stage: --STAGE.data.source {name}')
    raise SpecError(f'unknown recipe "{name}"{suggestion(name, known)} (or write FILE.py:FUNCTION)')


def _recipe(found: Callable[..., Any], name: str) -> Recipe:
    """What a user's name stands for, if it may be a recipe. Raises SpecError where it is something else."""
    untyped = [str(one) for one in inspect.signature(found).parameters.values() if one.annotation is one.default is one.empty]
    if isinstance(found, type) or untyped:
        what = "a class" if isinstance(found, type) else f"a function of ({', '.join(untyped)})"
        raise SpecError(f'"{name}" is {what}, and no recipe; name a function that returns a Run, whose parameters have types')
    return found


def build(name: str, words: Sequence[str], engine: str = "", known: Sequence[str] = ()) -> Run:
    """The run of a recipe with flags: its own parameters, fields of the run, and ``--STAGE.field`` for any leaf.

    ``engine`` generates, if given, instead of what the recipe says; ``known`` are other flags that exist, for suggestions.
    Raises SpecError for an unknown or mistyped flag and for an impossible combination.
    """
    from penstock.config.engine_choice import with_engine
    from penstock.config.leaves import set_leaves

    recipe = find(name)
    values, others = parameters(recipe, words, f"penstock train {name}") or ({}, [])
    run = call(recipe, name, values)
    if engine:
        run = with_engine(run, engine)
    own = ["--" + parameter.replace("_", "-") for parameter in inspect.signature(recipe).parameters]
    return set_leaves(run, pairs(others), [*own, *known])


def parameters(recipe: Recipe, words: Sequence[str], program: str) -> tuple[dict[str, Any], list[str]] | None:
    """The values of a recipe's own parameters, and the words that are none of them; None where help was printed.

    Raises SpecError if a parameter is missing, of another type, or of a type that no flag has.
    """

    def keep(**values: Any) -> dict[str, Any]:
        return values

    with blame(SpecError, program):
        signature = inspect.signature(recipe, eval_str=True)
        kinds = {name: one.annotation for name, one in signature.parameters.items() if one.annotation is not one.empty}
        texts = {line.partition(":")[0].strip(): line for line in (recipe.__doc__ or "").splitlines()}
        keep.__annotations__ = {name: hinted(kind, texts.get(name)) for name, kind in kinds.items()}
        vars(keep)["__signature__"], keep.__doc__ = signature, recipe.__doc__
        return parse(keep, words, program)


def pairs(words: Sequence[str]) -> list[tuple[str, str]]:
    """(path, text) of flags with one value each. Raises SpecError."""
    found: list[tuple[str, str, list[str]]] = []
    for word in words:
        if re.match(r"--[^\W\d]", word):
            flag, equals, value = word.partition("=")
            found.append((flag, equals, [value] if equals else []))
        elif not found or found[-1][1]:
            raise SpecError(f'"{word}" is not a flag; write --field value')
        else:
            found[-1][2].append(word)
    for flag, _, values in found:
        if len(values) != 1:
            more = "; put text with spaces in quotes, and write a list as '[1, 2]'" if values else ""
            raise SpecError(f"{flag} needs exactly one value, got {len(values)}{more}")
    return [(flag[2:].replace("-", "_"), values[0]) for flag, _, values in found]


def call(recipe: Recipe, name: str, values: Mapping[str, Any]) -> Run:
    """The run a recipe returns. Raises SpecError where the recipe fails or returns no run."""
    from penstock.config.run import Run
    from penstock.core.types import Sampling

    try:
        run = recipe(**values)
    except PenstockError:
        raise
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno}"
        unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        said = instead(unknown[1], {"": Sampling}) if unknown else ""
        raise SpecError(f'recipe "{name}" raised {type(error).__name__}: {error}{said} ({where})') from error
    if not isinstance(run, Run):
        raise SpecError(f'recipe "{name}" returned {type(run).__name__}, not a Run; name a function that returns a Run')
    return run


def show_help(name: str, program: str) -> None:
    """Print what a recipe does, its own flags, and how to set everything else."""
    from penstock.config.run import Run

    recipe = find(name)
    parameters(recipe, ["--help"], f"{program} {name}")
    stages = ["STAGE"]
    needed = [one.name for one in inspect.signature(recipe).parameters.values() if one.default is one.empty]
    with contextlib.suppress(SpecError):
        stages = [stage.name for stage in call(recipe, name, dict.fromkeys(needed, "x")).stages]
    fields = ", ".join(field for field in field_types(Run) if field != "stages")
    print(
        f"Every other field of the run is a flag too:\n"
        f"  --{stages[-1]}.FIELD VALUE  of a stage ({', '.join(stages)}), such as --{stages[-1]}.learner.learning_rate 1e-4\n"
        f"  --FIELD VALUE  of the run: {fields}\n"
        f"  --name, --runs, --resume: see {program} --help; penstock explain {name} shows sizes and memory"
    )
