"""``penstock deploy RECIPE --target …``: what starts a run in a cluster, printed or applied."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field, replace
from typing import Annotated

import tyro

from penstock.cli.command import called
from penstock.cli.recipe import Placeable
from penstock.core.errors import SpecError
from penstock.deploy.options import Options, Target


@dataclass(kw_only=True)
class Deploy(Placeable):
    """Print what starts a run in a cluster: a RayJob, TrainJob or JobSet for kubectl, or a batch script for sbatch.

    penstock deploy RECIPE --target rayjob --runtime ray --image … | kubectl apply -f -

    The recipe's parameters and every field of its run are flags too (penstock train RECIPE --help); RECIPE may be the run.json
    of a run. Secrets are never printed: name a Secret of the cluster by --secret.
    """

    target: Annotated[Target | None, called("TARGET")] = None
    """rayjob, trainjob, jobset or slurm."""
    name: Annotated[str, called("NAME")] = ""
    """Name of the run and of its objects (default: the recipe's name)."""
    apply: bool = False
    """Give it to the cluster at once, by kubectl or sbatch."""
    options: Annotated[Options, tyro.conf.arg(name="")] = field(default_factory=Options)

    def run(self) -> int:
        """Print or apply; gives the exit code."""
        if self.target is None:
            raise SpecError("--target is missing: rayjob, trainjob, jobset or slurm")
        from penstock.deploy.manifests import render, sender
        from penstock.deploy.packing import layout

        made = self.made()
        made = replace(made, name=self.name or made.name.replace("_", "-"))
        text = render(made, self.target, self.options)
        command = sender(self.target) if self.apply else []
        for line in layout(made, self.options).lines():  # next to what is printed, for the eyes of who sends it off
            print(f"penstock: {line}", file=sys.stderr)
        if command:
            return subprocess.run(command, input=text, text=True, check=False).returncode
        print(text, end="")
        return 0
