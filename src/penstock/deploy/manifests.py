"""From a run to the text that a cluster takes, and to the cluster itself if that is asked for."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

import yaml

from penstock.config.run import Run
from penstock.core.errors import SpecError
from penstock.deploy import kubernetes, slurm
from penstock.deploy.job import Job
from penstock.deploy.options import Options, Target
from penstock.deploy.surroundings import surroundings

STARTED_BY = {"rayjob": kubernetes.rayjob, "trainjob": kubernetes.trainjob, "jobset": kubernetes.jobset}


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as blocks; no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_representer(
    str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)
)


def objects(run: Run, target: Target, options: Options) -> list[dict[str, Any]]:
    """The Kubernetes objects of a run, in the order in which they are needed.

    Raises:
        SpecError: a combination that no cluster can carry out; names the fix.
    """
    job = Job(run, options)
    options.need("image", "docker build -t REGISTRY/penstock:TAG . && docker push it, then --image REGISTRY/penstock:TAG")
    if job.several and not options.claim:
        raise SpecError(f"{job.layout.nodes} nodes share the run's folder; name a claim that all can write: --claim NAME")
    if not options.claim and not job.store:
        raise SpecError("the run would end with its pod: add --claim NAME, or an object store by --checkpoint.store URL")
    return [*surroundings(job, kubernetes.FIRST_POD[target]), *STARTED_BY[target](job)]


def render(run: Run, target: Target, options: Options) -> str:
    """What ``kubectl apply -f -`` or ``sbatch`` takes. Raises SpecError as :func:`objects` does."""
    if target == "slurm":
        return slurm.script(Job(run, options))
    made = objects(run, target, options)
    remarks = "".join(f"# {remark}\n" for remark in Job(run, options).remarks)
    return remarks + yaml.dump_all(made, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)


def apply(text: str, target: Target) -> int:
    """Give it to the cluster; gives the exit code of ``kubectl`` or ``sbatch``, whose words go to the terminal.

    Raises:
        SpecError: the program is missing.
    """
    command = ["sbatch"] if target == "slurm" else ["kubectl", "apply", "-f", "-"]
    if shutil.which(command[0]) is None:
        raise SpecError(
            f"--apply needs {command[0]} on the PATH; without --apply the manifest is printed, to be taken elsewhere"
        )
    return subprocess.run(command, input=text, text=True, check=False).returncode
