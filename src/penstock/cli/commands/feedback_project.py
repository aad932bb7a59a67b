"""``penstock feedback project``: projects of a store, their people and what is set for them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional

from penstock.cli.command import called
from penstock.cli.commands.feedback import StoreCommand, opened
from penstock.cli.commands.feedback_ask import ends_of, parts_of
from penstock.cli.commands.feedback_serve import read
from penstock.core.errors import SpecError


@dataclass(kw_only=True)
class Projects(StoreCommand):
    """List the projects of a store; or make one, show one, or change its people and what is set for it."""

    name: Positional[Annotated[str, called("[NAME]")]] = ""
    """A project (default: list them)."""
    new: bool = False
    """Make it."""
    add: Annotated[str, called("NAMES")] = ""
    """People who become members, such as alice,bob."""
    remove: Annotated[str, called("NAMES")] = ""
    """Members who are none any more; what they said stays."""
    guideline: Annotated[Path | None, called("FILE.md")] = None
    """What its annotators read from now on; needs --guideline-version."""
    guideline_version: str = ""
    """A new name for a new text; alone: the text of that version again."""
    forms: Annotated[str, called("FORMS")] = ""
    """Forms that it asks, such as pair,rating."""
    overlap: int | None = None
    """People who answer each question."""
    axes: str = ""
    """What is rated, such as helpful,harmless."""
    scale: Annotated[str, called("LOW,HIGH")] = ""
    """Lowest and highest rating."""
    gold_share: float | None = None
    """This and the next five: as penstock feedback serve has them, for this project."""
    repeat_share: float | None = None
    qualify: int | None = None
    qualified: float | None = None
    pause: Annotated[Literal["on", "off"] | None, called("on|off")] = None
    quota: int | None = None

    def __post_init__(self) -> None:
        if not self.name and any(value for name, value in vars(self).items() if name != "store"):
            raise SpecError("name the project: penstock feedback project STORE NAME …")
        if self.guideline and not self.guideline_version:
            raise SpecError("--guideline: give its version too, --guideline-version NAME; it is kept with every vote")

    def run(self) -> None:
        """Print what there is, or what it is now."""
        from penstock.feedback import projects

        with opened(self.store) as store:
            if not self.name:
                with store.database.read() as connection:
                    found = {name: len(projects.members(connection, name)) for name in projects.names_of(connection)}
                for name, people in found.items():
                    tasks = sum(count.tasks for count in store.counts(name).values())
                    print(f"{name}: {tasks} task{'s' * (tasks != 1)}, {people} member{'s' * (people != 1)}")
                return
            project = self._changed(projects.Project(self.name) if self.new else store.project(self.name))
            projects.change(store, project, new=self.new, add=parts_of(self.add), remove=parts_of(self.remove))
            with store.database.read() as connection:
                people_there = projects.members(connection, self.name)
        answers = f"{project.overlap} answer{'s' * (project.overlap != 1)}"
        print(f"{project.name}: forms: {', '.join(project.forms)}; {answers} per question")
        print(f"axes: {', '.join(project.axes)}, from {project.scale[0]:g} to {project.scale[1]:g}")
        print(f"guideline: {project.guideline or 'service default'}")
        print(f"members: {', '.join(people_there) or 'nobody'}")
        for name, value in project.policy.items():
            print(f"{name}: {value}")

    def _changed(self, project: Any) -> Any:
        """The project with what is given."""
        from penstock.feedback.projects import POLICY

        given: dict[str, Any] = {"forms": parts_of(self.forms), "axes": parts_of(self.axes), "overlap": self.overlap}
        given["scale"] = ends_of(self.scale)
        said = {name: getattr(self, name) for name in POLICY} | {"pause": None if self.pause is None else self.pause == "on"}
        policy = {**project.policy, **{name: value for name, value in said.items() if value is not None}}
        made = replace(project, **{name: value for name, value in given.items() if value not in (None, ())}, policy=policy)
        if self.guideline:
            return made.with_guideline(self.guideline_version, read(self.guideline))
        return replace(made, guideline=self.guideline_version) if self.guideline_version else made
