"""What brings a run's pods up in Kubernetes: a RayJob, a JobSet, or a TrainJob with its runtime."""

from __future__ import annotations

from typing import Any

from penstock.ckpt.fence import ATTEMPT
from penstock.config.spec import require
from penstock.deploy.job import HOME, RAY_PORT, Job
from penstock.deploy.pods import RESTARTS, drain, environment, metadata, pod

RAY_VERSION = "2.60.0"
"""Of the image; KubeRay chooses by it how it submits the run."""
NODE = "node"
"""The one replicated job: nodes that are all alike, the first of which is the head."""
FIRST_POD = {
    "rayjob": {"ray.io/node-type": "head"},
    "jobset": {"batch.kubernetes.io/job-completion-index": "0"},
    "trainjob": {"batch.kubernetes.io/job-completion-index": "0"},
}
"""Labels of the pod in which the run's command is, and its metrics."""
WRONG_INPUT = 2
"""Exit code of what starting again does not mend."""

HEAD_GONE = 10
"""Seconds after which a node leaves a head that does not answer: another one is another cluster."""

Object = dict[str, Any]


def rayjob(job: Job) -> list[Object]:
    """A cluster of KubeRay's for each attempt, in which ``ray job submit`` starts the run on the head.

    Raises:
        SpecError: the run does not use Ray, or the cluster would have no token.
    """
    require(
        job.run.runtime == "ray", f'--target rayjob starts a Ray cluster, and runtime="{job.run.runtime}"; add --runtime ray'
    )
    options, count = job.options, job.layout.nodes - 1
    options.need(
        "secret", "its key auth_token is the Ray cluster's token, without which anybody who reaches a pod runs code there"
    )
    # KubeRay counts no attempts for its pods; the mark of the one that began last is the fence.
    own: Object = {"name": "ray", "env": [{"name": ATTEMPT, "value": "0"}], **drain(job)}
    ports = [("gcs", RAY_PORT), ("dashboard", 8265)]
    head = own | {"ports": [{"name": name, "containerPort": port} for name, port in ports]}
    cluster: Object = {
        "rayVersion": RAY_VERSION,
        "authOptions": {"mode": "token", "secretName": options.secret},
        "headGroupSpec": {"rayStartParams": {}, "template": pod(job, head)},
        "workerGroupSpecs": [
            {"groupName": "nodes", "replicas": count, "minReplicas": count, "maxReplicas": count,
             "rayStartParams": {}, "template": pod(job, own)}
        ] if count else [],
    }  # fmt: skip
    spec: Object = {
        "entrypoint": f"env -C {HOME} {job.command()}",
        "submissionMode": "K8sJobMode",
        "backoffLimit": options.retries,
        "shutdownAfterJobFinishes": True,
        "ttlSecondsAfterFinished": options.ttl,
        "rayClusterSpec": cluster,
        "submitterPodTemplate": _submitter(job),
        **_suspended(job),
    }
    return [{"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": metadata(job, labels=_queue(job)), "spec": spec}]


def _submitter(job: Job) -> Object:
    """The small pod that submits the run and follows its log."""
    template = pod(job, {"name": "submitter"})
    template["metadata"]["labels"] = {**template["metadata"]["labels"], "app.kubernetes.io/component": "submitter"}
    (container,) = template["spec"]["containers"]
    small = {"cpu": "500m", "memory": "1Gi"}
    kept = {name: container[name] for name in ("name", "image", "securityContext")}
    variables = [one for one in environment(job) if one["name"] in ("HOME", "PYTHONUNBUFFERED")]
    writable = [mount for mount in container["volumeMounts"] if mount["name"] == "tmp"]
    limits = {"resources": {"requests": small, "limits": small}, "env": variables, "volumeMounts": writable}
    volumes = [volume for volume in template["spec"]["volumes"] if volume["name"] == "tmp"]
    template["spec"] |= {"containers": [kept | limits], "volumes": volumes}
    template["spec"].pop("affinity", None)
    return template


def node_script(job: Job) -> str:
    """What a node of several runs: the first is the head and has the run, the others join it and end well if the run did."""
    finished = f"runs/{job.run.name}/summary.json"
    return f"""set -eu
if [ "$JOB_COMPLETION_INDEX" = 0 ]; then
  {job.start_ray(str(RAY_PORT))}
  exec {job.command()}
fi
until (: </dev/tcp/"$HEAD"/{RAY_PORT}) 2>/dev/null; do sleep 2; done
{job.start_ray(str(RAY_PORT), '"$HEAD"')} || true
grep -qs '"headline"' {finished} || exit 1
"""


def _jobset_spec(job: Job, labelled: Object | None = None) -> Object:
    """The pods as an indexed Job in a JobSet, which starts all of them again where one fails, once the old ones are gone.

    Raises:
        SpecError: the cluster would have no token.
    """
    options, nodes = job.options, job.layout.nodes
    head = f"{job.run.name}-{NODE}-0-0.{job.run.name}"
    env: list[Object] = [{"name": ATTEMPT, "valueFrom": {"fieldRef": {"fieldPath": RESTARTS}}}]
    own: Object = {"name": NODE, "command": ["bash", "-c", f"exec {job.command()}"], "env": env}
    if job.several:
        require(
            job.run.runtime == "ray", f'{nodes} nodes are a Ray cluster, and runtime="{job.run.runtime}"; add --runtime ray'
        )
        options.need("secret", "its key auth_token is the Ray cluster's token, without which who reaches a pod runs code there")
        token = {"secretKeyRef": {"name": options.secret, "key": "auth_token"}}
        env += [{"name": "RAY_gcs_rpc_server_reconnect_timeout_s", "value": str(HEAD_GONE)}]
        env += [{"name": "HEAD", "value": head}, {"name": "RAY_ADDRESS", "value": f"$(HEAD):{RAY_PORT}"}]
        env += [{"name": "RAY_AUTH_MODE", "value": "token"}, {"name": "RAY_AUTH_TOKEN", "valueFrom": token}]
        own |= {"command": ["bash", "-c", node_script(job)], **drain(job)}
    grouped = options.gang == "volcano" and labelled is None
    template = pod(job, own, {"scheduling.k8s.io/group-name": job.run.name} if grouped else None)
    if options.gang == "volcano":
        template["spec"]["schedulerName"] = "volcano"
    lost = {"action": "FailJob", "onExitCodes": {"containerName": NODE, "operator": "In", "values": [WRONG_INPUT]}}
    batch: Object = {
        "completionMode": "Indexed", "completions": nodes, "parallelism": nodes, "backoffLimit": 0,
        "podFailurePolicy": {"rules": [lost]}, "template": template,
    }  # fmt: skip
    return {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "replicatedJobs": [
            {"name": NODE, "replicas": 1, "template": {"metadata": {"labels": labelled or {}}, "spec": batch}}
        ],
        "failurePolicy": {
            "maxRestarts": options.retries, "restartStrategy": "BlockingRecreate",
            "rules": [{"name": "wronginput", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}],
        },
        "ttlSecondsAfterFinished": options.ttl,
    }  # fmt: skip


def jobset(job: Job) -> list[Object]:
    """A JobSet, and the group of pods that Volcano starts together."""
    spec = {**_jobset_spec(job), **_suspended(job)}
    made: Object = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet"}
    made |= {"metadata": metadata(job, labels=_queue(job) if job.options.gang == "kueue" else {}), "spec": spec}
    group: Object = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "metadata": metadata(job)}
    group |= {"spec": {"minMember": job.layout.nodes, "queue": job.options.queue}}
    return [group, made] if job.options.gang == "volcano" else [made]


def trainjob(job: Job) -> list[Object]:
    """A TrainJob of Kubeflow's, and the TrainingRuntime that says how its pods are made."""
    version, volcano = "trainer.kubeflow.org/v1alpha1", job.options.gang == "volcano"
    spec = _jobset_spec(job, {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"})
    template: Object = {"spec": spec}
    if volcano:
        template["metadata"] = {"annotations": {"scheduling.volcano.sh/queue-name": job.options.queue}}
    runtime: Object = {"mlPolicy": {"numNodes": job.layout.nodes}, "template": template}
    runtime |= {"podGroupPolicy": {"volcano": {}}} if volcano else {}
    reference = {"apiGroup": version.partition("/")[0], "kind": "TrainingRuntime", "name": job.run.name}
    started = {"runtimeRef": reference, "trainer": {"numNodes": job.layout.nodes}, **_suspended(job)}
    labels = _queue(job) if job.options.gang == "kueue" else {}
    return [
        {"apiVersion": version, "kind": "TrainingRuntime", "metadata": metadata(job), "spec": runtime},
        {"apiVersion": version, "kind": "TrainJob", "metadata": metadata(job, labels=labels), "spec": started},
    ]


def _queue(job: Job) -> dict[str, str]:
    names = {"none": "", "kueue": "kueue.x-k8s.io/queue-name", "volcano": "volcano.sh/queue-name"}
    return {names[job.options.gang]: job.options.queue} if job.options.queue else {}


def _suspended(job: Job) -> Object:
    """Kueue lets the pods of what is suspended start together, once there is room."""
    return {"suspend": True} if job.options.gang == "kueue" else {}
