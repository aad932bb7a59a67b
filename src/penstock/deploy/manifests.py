"""From a run to the text that a cluster takes, by the templates in this folder, and to the cluster itself if asked to."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import jinja2

from penstock.config.run import Run
from penstock.config.spec import require
from penstock.core.errors import SpecError
from penstock.deploy.job import HOME, METRICS_PORT, RAY_PORT, Job
from penstock.deploy.needs import check_image, check_reach
from penstock.deploy.options import Options, Target
from penstock.deploy.patch import patched
from penstock.observe.monitors.dashboard import alert_rules

RAY_VERSION = "2.60.0"
"""Of the image; KubeRay chooses by it how it submits the run."""
USER = 1000
"""Numeric id of the image's user, and of the group that may write the volume."""
_FOLDER, _SHELL = "runs go to the folder that the script is submitted in", "variables are those of the submitting shell"
_SBATCH = "Slurm has that as a flag of sbatch: "
NOT_SLURM = {
    "image": "the submitting shell's Python counts", "extras": "the submitting shell's Python counts", "namespace": _FOLDER,
    "claim": _FOLDER, "data_claim": "name the data by a path that all nodes see", "secret": _SHELL, "pull_secret": _SHELL,
    "service_account": _SBATCH + "-A ACCOUNT", "queue": _SBATCH + "-p PARTITION", "tolerations": _SBATCH + "-p PARTITION",
    "topology": _SBATCH + "--switches=1", "rdma": "NCCL finds InfiniBand itself", "node_labels": _SBATCH + "-C FEATURE",
    "priority_class": _SBATCH + "--qos=NAME", "runtime_class": _SBATCH + "--container=BUNDLE",
    "pod_labels": _SBATCH + "--comment=TEXT", "pod_annotations": _SBATCH + "--comment=TEXT",
    "operator": "nothing of Prometheus is printed", "patch": "give sbatch's own flags, which go before the script's",
}  # fmt: skip
"""Options of Kubernetes, and what does it in Slurm."""
UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")
"""What JSON may hold as it is and YAML may not."""


def render(run: Run, target: Target, options: Options) -> str:
    """What ``kubectl apply -f -`` or ``sbatch`` takes.

    Raises:
        SpecError: a combination that no cluster can carry out; names the fix.
    """
    job = Job(run, options)
    (_check_slurm if target == "slurm" else _check_kubernetes)(job, target)
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters |= {"json": _as_json, "printable": _printable, "shell": shlex.quote}
    templates.globals["pairs"] = lambda texts: dict(text.split("=", 1) for text in texts)
    values = {"job": job, "options": options, "layout": job.layout, "target": target}
    if target == "slurm":
        return templates.get_template("slurm.sh.jinja").render(values)
    values |= {"environment": environment(job), "size": size(job), "queue": queue(options), "alerts": alert_rules()}
    values |= {"home": HOME, "user": USER, "ray_version": RAY_VERSION, "ray_port": RAY_PORT, "metrics_port": METRICS_PORT}
    text = templates.get_template("kubernetes.yaml.jinja").render(values)
    return patched(text, options.patch) if options.patch else text


def _printable(text: str) -> str:
    return UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _as_json(value: Any) -> str:
    """A value as JSON, which YAML reads as it is meant."""
    return _printable(json.dumps(value, ensure_ascii=False))


def _check_kubernetes(job: Job, target: Target) -> None:
    """Refuse what pods cannot carry out. Raises SpecError."""
    options, nodes, runtime = job.options, job.layout.nodes, job.run.runtime
    options.need("image", "docker build -t REGISTRY/penstock:TAG . && docker push it, then --image REGISTRY/penstock:TAG")
    if job.several and not options.claim:
        raise SpecError(f"{nodes} nodes share the run's folder; name a claim that all can write: --claim NAME")
    if not options.claim and not job.store:
        raise SpecError("the run would end with its pod: add --claim NAME, or an object store by --checkpoint.store URL")
    if job.store and not options.service_account:
        options.need(
            "secret",
            f"checkpoint.store={job.store} needs credentials, such as AWS_ACCESS_KEY_ID, in a Secret, or a workload identity: "
            "--service-account NAME",
        )
    check_image(job.run, options)
    check_reach(job.run, options)
    if target == "rayjob" or job.several:
        what = "--target rayjob starts" if target == "rayjob" else f"{nodes} nodes are"
        require(runtime == "ray", f'{what} a Ray cluster, and runtime="{runtime}"; add --runtime ray')
        options.need(
            "secret", "its key auth_token is the Ray cluster's token, without which anybody who reaches a pod runs code there"
        )


def _check_slurm(job: Job, target: Target) -> None:
    """Refuse what Slurm knows otherwise, and several nodes without Ray. Raises SpecError."""
    plain = {field.name: field.default for field in dataclasses.fields(Options)}
    for name, instead in NOT_SLURM.items():
        require(getattr(job.options, name) == plain[name], f"--{name.replace('_', '-')}: not for Slurm; {instead}")


def environment(job: Job) -> dict[str, str]:
    """Variables of every container. NCCL finds its own way over InfiniBand where there is RDMA, and uses TCP otherwise."""
    return {
        "HOME": "/tmp", "HF_HOME": f"{HOME}/.cache/huggingface", "PYTHONUNBUFFERED": "1", "RAY_USAGE_STATS_ENABLED": "0",
        "NCCL_DEBUG": "WARN", "NCCL_SOCKET_IFNAME": "eth0",
        **({} if job.options.rdma else {"NCCL_IB_DISABLE": "1"}),
        **dict(pair.split("=", 1) for pair in job.options.env),
    }  # fmt: skip


def size(job: Job) -> dict[str, str]:
    """What every pod that is a node asks for."""
    gpus = {"nvidia.com/gpu": str(job.layout.gpus)} if job.layout.gpus else {}
    rdma = {job.options.rdma: str(job.options.rdma_devices)} if job.options.rdma else {}
    return {"cpu": str(job.layout.cpus), "memory": job.options.memory, **gpus, **rdma}


def queue(options: Options) -> dict[str, str]:
    """The label by which Kueue or Volcano finds an object's queue."""
    names = {"none": "", "kueue": "kueue.x-k8s.io/queue-name", "volcano": "volcano.sh/queue-name"}
    return {names[options.gang]: options.queue} if options.queue else {}


def sender(target: Target) -> list[str]:
    """The command that gives a manifest to the cluster. Raises SpecError: it is missing here."""
    command = ["sbatch"] if target == "slurm" else ["kubectl", "apply", "-f", "-"]
    if shutil.which(command[0]) is None:
        raise SpecError(
            f"--apply needs {command[0]} on the PATH; without --apply the manifest is printed, to be taken elsewhere"
        )
    return command
