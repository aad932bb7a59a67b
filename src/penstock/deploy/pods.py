"""The pod that every node of a run is, whatever starts it."""

from __future__ import annotations

from typing import Any

from penstock.deploy.job import HOME, METRICS_PORT, SPEC, Job

USER = 1000
"""Numeric id of the image's user, and of the group that may write the volume."""
RESTARTS = "metadata.labels['jobset.sigs.k8s.io/restart-attempt']"
"""Where a pod of a JobSet finds how often that was started again."""


def labels(job: Job) -> dict[str, str]:
    """What every object of a run is found by."""
    return {"app.kubernetes.io/name": "penstock", "app.kubernetes.io/instance": job.run.name}


def metadata(job: Job, name: str = "", **more: Any) -> dict[str, Any]:
    """Name, namespace and labels of an object."""
    where = {"namespace": job.options.namespace} if job.options.namespace else {}
    return {"name": name or job.run.name, **where, "labels": {**labels(job), **more.pop("labels", {})}, **more}


def pod(job: Job, container: dict[str, Any], annotations: dict[str, str] | None = None) -> dict[str, Any]:
    """A pod template around a container's name, command and variables."""
    options = job.options
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": options.grace,
        "securityContext": {
            "runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch", "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(job, container)],
        "volumes": _volumes(job),
    }  # fmt: skip
    if options.topology and options.gang != "kueue":
        near = {"labelSelector": {"matchLabels": labels(job)}, "topologyKey": options.topology}
        spec["affinity"] = {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 100, "podAffinityTerm": near}]}}  # fmt: skip
    if options.topology and options.gang == "kueue":
        annotations = {**(annotations or {}), "kueue.x-k8s.io/podset-preferred-topology": options.topology}
    return {"metadata": {"labels": labels(job), **({"annotations": annotations} if annotations else {})}, "spec": spec}


def _container(job: Job, own: dict[str, Any]) -> dict[str, Any]:
    options = job.options
    size: dict[str, Any] = {"cpu": str(options.cpus), "memory": options.memory}
    size |= {"nvidia.com/gpu": str(job.layout.gpus)} if job.layout.gpus else {}
    size |= {options.rdma: "1"} if options.rdma else {}
    source = {"envFrom": [{"secretRef": {"name": options.secret}}]} if options.secret else {}
    drops: dict[str, Any] = {"drop": ["ALL"], **({"add": ["IPC_LOCK"]} if options.rdma else {})}
    mounts = [(HOME, "runs"), ("/dev/shm", "shm"), ("/tmp", "tmp"), (SPEC.rpartition("/")[0], "spec")]
    return {
        "image": options.image,
        "workingDir": HOME,
        **own,
        "env": [*environment(job), *own.get("env", [])],
        **source,
        "resources": {"requests": size, "limits": size},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": drops},
        "ports": [{"name": "metrics", "containerPort": METRICS_PORT}, *own.get("ports", [])],
        "volumeMounts": [
            {"name": name, "mountPath": path, **({"readOnly": True} if name == "spec" else {})} for path, name in mounts
        ],
    }


def environment(job: Job) -> list[dict[str, Any]]:
    """Variables of every container. NCCL finds its own way over InfiniBand where there is RDMA, and uses TCP otherwise."""
    values = {
        "HOME": "/tmp", "HF_HOME": f"{HOME}/.cache/huggingface", "PYTHONUNBUFFERED": "1", "RAY_USAGE_STATS_ENABLED": "0",
        "NCCL_DEBUG": "WARN", "NCCL_SOCKET_IFNAME": "eth0",
        **({} if job.options.rdma else {"NCCL_IB_DISABLE": "1"}),
        **dict(pair.split("=", 1) for pair in job.options.env),
    }  # fmt: skip
    return [{"name": name, "value": value} for name, value in values.items()]


def _volumes(job: Job) -> list[dict[str, Any]]:
    claim = job.options.claim
    return [
        {"name": "runs", **({"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": {}})},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": job.options.shm}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "spec", "configMap": {"name": f"{job.run.name}-spec"}},
    ]


def drain(job: Job) -> dict[str, Any]:
    """What a pod of several does before it gets SIGTERM, which would end its Ray node at once: it waits for the run's save."""
    return {"lifecycle": {"preStop": {"exec": {"command": ["python", "-m", "penstock.deploy.drain", job.run.name]}}}}
