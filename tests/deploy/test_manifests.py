"""Every manifest passes the published schemas, and says what a run in a cluster needs."""

from __future__ import annotations

import copy
import functools
import itertools
import json
import operator
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from strict_schemas import custom, objects, problems, templates

from penstock.ckpt.lease import ATTEMPT
from penstock.config.leaves import set_leaves
from penstock.config.run import Run
from penstock.config.spec import parse
from penstock.core.errors import SpecError
from penstock.deploy.manifests import RAY_VERSION, render
from penstock.deploy.options import Options
from penstock.recipes.quickstart import quickstart

RESTARTS = "metadata.labels['jobset.sigs.k8s.io/restart-attempt']"
"""Where a pod of a JobSet finds how often that was started again."""
TARGETS = ("rayjob", "trainjob", "jobset")
PAIRWISE = [
    ("rayjob", "cpu", "claim", "none"),
    ("rayjob", "cuda", "claim", "kueue"),
    ("rayjob", "cpu", "object store", "volcano"),
    ("trainjob", "cuda", "object store", "none"),
    ("trainjob", "cpu", "claim", "kueue"),
    ("trainjob", "cuda", "claim", "volcano"),
    ("jobset", "cpu", "object store", "none"),
    ("jobset", "cuda", "object store", "kueue"),
    ("jobset", "cpu", "claim", "volcano"),
]
"""Every two values of target, device, store and gang meet."""
ROOT = Path(__file__).resolve().parents[2]


def faults(made: list[dict[str, Any]]) -> list[str]:
    """What is wrong with all objects of a manifest."""
    return [problem for one in made for problem in problems(one)]


def run_of(device: str = "cpu", *leaves: tuple[str, str], runtime: str = "ray") -> Run:
    return set_leaves(quickstart(), [("runtime", runtime), ("device", device), *leaves])


def options(**more: Any) -> Options:
    return Options(**{"image": "registry.example/penstock:0.1.0", "claim": "runs", "secret": "penstock", **more})


def combined(target: Any, device: str, store: str = "claim", gang: Any = "none") -> list[dict[str, Any]]:
    """A combination; without a claim on one node, since several share a folder."""
    away = store == "object store"
    run = run_of(device, *([("checkpoint.store", "s3://bucket/runs")] if away else []))
    queue = {"gang": gang, "queue": "" if gang == "none" else "research"}
    placed = {"nodes": 1 if away else 2, "claim": "" if away else "runs", "claim_size": "" if away else "200Gi"}
    return objects(run, target, options(**placed, **queue, cpus=16, gpus=8 if device == "cuda" else 0))


def pods(made: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The pods that are nodes of the run; not the one that submits."""
    found = [template for one in made for template in templates(one)]
    return [one for one in found if one["metadata"]["labels"].get("app.kubernetes.io/component") != "submitter"]


def of_kind(made: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = [one for one in made if one["kind"] == kind]
    return found


@pytest.mark.parametrize(("target", "device", "store", "gang"), PAIRWISE)
def test_every_object_passes_its_published_schema(target: str, device: str, store: str, gang: str) -> None:
    made = combined(target, device, store, gang)
    assert faults(made) == []
    kinds = [one["kind"] for one in made]
    assert {"ConfigMap", "NetworkPolicy", "PodMonitor", "PrometheusRule"} < set(kinds)
    assert ("PersistentVolumeClaim" in kinds) == (store == "claim")


@pytest.mark.parametrize("target", TARGETS)
def test_what_every_option_adds_passes_too(target: Any) -> None:
    more = {"rdma": "rdma/ib", "topology": "topology.kubernetes.io/rack", "https": True, "env": ("NCCL_DEBUG_SUBSYS=NET",)}
    for gang, queue in (("kueue", "a"), ("none", "")):
        made = objects(run_of("cuda"), target, options(gang=gang, queue=queue, namespace="lab", nodes=3, **more))
        assert faults(made) == []
        assert {one["metadata"]["namespace"] for one in made} == {"lab"}
        assert all(pod["spec"]["containers"][0]["resources"]["limits"]["rdma/ib"] == "1" for pod in pods(made))


FREE = {"labels", "annotations", "matchLabels", "data", "limits", "requests"}
"""Maps whose names anybody may choose."""
KINDS = {
    "rayjob": ("RayJob", "NetworkPolicy", "PersistentVolumeClaim", "PodMonitor", "PrometheusRule", "ConfigMap"),
    "jobset": ("JobSet", "PodGroup"),
    "trainjob": ("TrainJob", "TrainingRuntime"),
}


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The objects in an object."""
    if isinstance(value, dict) and not (path and path[-1] in FREE):
        yield path
        for name, inner in value.items():
            yield from places(inner, (*path, name))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from places(inner, (*path, place))


def at(value: Any, path: tuple[str | int, ...]) -> Any:
    return functools.reduce(operator.getitem, path, value)


@pytest.mark.parametrize(("target", "kind"), [(target, kind) for target, kinds in KINDS.items() for kind in kinds])
def test_a_planted_typo_is_caught_in_every_field(target: str, kind: str) -> None:
    """Objects of one name and the same fields are tried once: a run has many pods and variables."""
    sound = of_kind(combined(target, "cuda", gang="volcano"), kind)
    missed, tried = [], set()
    for path in places(sound):
        name = next((part for part in reversed(path) if isinstance(part, str)), "")
        if (shape := (name, *at(sound, path))) in tried:
            continue
        tried.add(shape)
        for field in at(sound, path).keys() - (set() if path else {"apiVersion", "kind"}):
            made = copy.deepcopy(sound)
            at(made, path)[f"{field}s"] = at(made, path).pop(field)
            if not any(f"{field}s" in problem or f"'{field}' is a required property" in problem for problem in problems(made)):
                missed.append((*path, field))
    assert missed == []


@pytest.mark.parametrize("value", ["eight", 8.5, ["8"]])
def test_a_value_of_the_wrong_type_is_caught(value: Any) -> None:
    made = of_kind(combined("jobset", "cpu"), "JobSet")
    made["spec"]["replicatedJobs"][0]["template"]["spec"]["completions"] = value
    assert problems(made)


def test_the_schemas_are_those_of_the_versions_that_the_docs_name() -> None:
    rules = {kind: one["cel"] for (_, kind), one in custom().items()}
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    assert all(f"| {kind} | {count} |" in page for kind, count in rules.items() if count)
    assert f"ray=={RAY_VERSION}" in (ROOT / "constraints.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(("target", "gang"), itertools.product(TARGETS, ("kueue", "volcano")))
def test_all_pods_start_together_or_none(target: str, gang: str) -> None:
    made = combined(target, "cuda", "claim", gang)
    last, found = made[-1], yaml.safe_dump_all(made)
    if gang == "kueue":
        assert last["spec"]["suspend"] is True
        assert last["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"
    elif target == "rayjob":
        assert last["metadata"]["labels"]["volcano.sh/queue-name"] == "research"
    elif target == "jobset":
        assert of_kind(made, "PodGroup")["spec"] == {"minMember": 2, "queue": "research"}
        assert "scheduling.k8s.io/group-name: quickstart" in found
    else:
        assert of_kind(made, "TrainingRuntime")["spec"]["podGroupPolicy"] == {"volcano": {}}
        assert "scheduling.volcano.sh/queue-name: research" in found


@pytest.mark.parametrize("target", TARGETS)
def test_a_pod_has_what_it_computes_with_and_no_rights(target: str) -> None:
    for pod in pods(combined(target, "cuda")):
        spec, (container,) = pod["spec"], pod["spec"]["containers"]
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        assert container["resources"]["limits"] == {"cpu": "16", "memory": "32Gi", "nvidia.com/gpu": "8"}
        assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "8192Mi"}
        assert volumes["runs"]["persistentVolumeClaim"] == {"claimName": "runs"}
        assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]
        assert {"name": "NCCL_SOCKET_IFNAME", "value": "eth0"} in container["env"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        assert spec["terminationGracePeriodSeconds"] == 300


@pytest.mark.parametrize("target", TARGETS)
def test_the_attempt_is_a_fencing_token(target: str) -> None:
    for pod in pods(combined(target, "cpu")):
        (token,) = [one for one in pod["spec"]["containers"][0]["env"] if one["name"] == ATTEMPT]
        known = token == {"name": ATTEMPT, "value": "0"}  # KubeRay counts none for its pods
        assert known if target == "rayjob" else token["valueFrom"] == {"fieldRef": {"fieldPath": RESTARTS}}


def test_the_retries_are_the_limit_of_each_kind() -> None:
    assert of_kind(combined("rayjob", "cpu"), "RayJob")["spec"]["backoffLimit"] == 5
    policy = of_kind(combined("jobset", "cpu"), "JobSet")["spec"]["failurePolicy"]
    assert policy["maxRestarts"] == 5
    assert policy["restartStrategy"] == "BlockingRecreate"


@pytest.mark.parametrize(("leaves", "open_"), [((), False), ((("sft.model.path", "Qwen/Qwen3-0.6B"),), True)])
def test_the_network_is_closed_but_for_the_run_dns_and_what_it_needs(leaves: Any, open_: bool) -> None:
    made = objects(run_of("cpu", *leaves), "jobset", options(nodes=2))
    rules = of_kind(made, "NetworkPolicy")["spec"]["egress"]
    ports = [port["port"] for rule in rules for port in rule.get("ports", [])]
    assert ports == [53, 53] + [443] * open_
    assert rules[0] == {"to": [{"podSelector": {"matchLabels": pods(made)[0]["metadata"]["labels"]}}]}
    if open_:
        assert rules[-1]["to"][0]["ipBlock"]["except"] == ["169.254.169.254/32"]


@pytest.mark.parametrize("target", TARGETS)
def test_secrets_are_referred_to_and_no_value_is_printed(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_very_secret")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "ray_very_secret")
    text = render(run_of("cuda"), target, options(nodes=2))
    assert "very_secret" not in text
    assert "kind: Secret\n" not in text
    assert all(
        pod["spec"]["containers"][0]["envFrom"] == [{"secretRef": {"name": "penstock"}}]
        for pod in pods(list(yaml.safe_load_all(text)))
    )


def test_what_is_printed_holds_the_whole_run() -> None:
    run = run_of("cuda")
    made = objects(run, "rayjob", options())
    kept = parse(Run, json.loads(of_kind(made, "ConfigMap")["data"]["run.json"]))
    assert replace(kept, monitors=()) == run
    assert kept.monitors == ("prometheus:0.0.0.0:9464",)


def test_a_run_with_a_store_needs_no_secret_under_slurm() -> None:
    run = run_of("cpu", ("checkpoint.store", "s3://b/r"))
    assert '"store": "s3://b/r"' in render(run, "slurm", Options())


REFUSED: dict[str, tuple[str, tuple[tuple[str, str], ...], dict[str, Any], str]] = {
    "no image": ("jobset", (), {"image": ""}, "--image is missing"),
    "no Ray": ("rayjob", (("runtime", "local"),), {}, "add --runtime ray"),
    "several nodes without Ray": ("jobset", (("runtime", "local"),), {"nodes": 2}, 'runtime="local" lives on one node'),
    "no folder for several nodes": ("jobset", (), {"nodes": 2, "claim": ""}, "share the run's folder"),
    "nowhere to keep the run": ("jobset", (), {"claim": ""}, "the run would end with its pod"),
    "a store without credentials": ("jobset", (("checkpoint.store", "s3://b/r"),), {"secret": ""}, "needs credentials"),
    "a cluster without a token": ("rayjob", (), {"secret": ""}, "auth_token"),
    "nodes without a token": ("trainjob", (), {"secret": "", "nodes": 2}, "auth_token"),
    "GPUs that nobody uses": ("jobset", (), {"gpus": 8}, "add --device cuda"),
    "a learner larger than a node": (
        "jobset", (("device", "cuda"), ("grpo.learner.strategy", "FSDP2"), ("grpo.learner.strategy.ranks", "16")), {},
        "16 GPUs of one node are needed, and a node has 8",
    ),
    "fewer nodes than needed": (
        "jobset", (("device", "cuda"), ("roles.generators", "15")), {"nodes": 1, "cpus": 32}, "the placement needs 2 nodes",
    ),
    "more cores than a node has": ("jobset", (("roles.generators", "15"),), {"nodes": 1}, "the placement needs 3 nodes"),
    "a queue of nobody": ("jobset", (), {"queue": "a"}, "--gang and --queue go together"),
    "a gang without a queue": ("jobset", (), {"gang": "kueue"}, "--gang and --queue go together"),
    "a size of no unit": ("jobset", (), {"memory": "lots"}, "--memory lots is no size"),
    "a size without a unit, which Slurm takes for megabytes": ("slurm", (), {"memory": "5"}, "--memory 5 is no size"),
    "a size that Slurm cannot read": ("slurm", (), {"memory": "1.5G"}, "--memory 1.5G is no size"),
    "a secret in a variable": ("jobset", (), {"env": ("WANDB_API_KEY=abc",)}, "put it into a Secret"),
    "a variable without a value": ("jobset", (), {"env": ("A",)}, "write NAME=VALUE"),
    "a grace too short to save": ("jobset", (), {"grace": 5}, "--grace 5; at least 30"),
    "a name that Kubernetes refuses": ("jobset", (("name", "My_Run"),), {}, "small letters, digits and dashes"),
    "a name that is too long": ("jobset", (("name", "a" * 41),), {}, "at most 40 characters"),
    "an image for Slurm": ("slurm", (), {"claim": "", "secret": ""}, "--image: not for Slurm"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_with_the_fix(case: str) -> None:
    target, leaves, more, words = REFUSED[case]
    with pytest.raises(SpecError) as refused:
        render(run_of("cpu", *leaves), target, options(**more))
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_nodes_follow_from_the_placement() -> None:
    run = run_of("cuda", ("roles.generators", "15"))
    assert len(list(pods(objects(run, "rayjob", options(cpus=32))))) == 2
    made = of_kind(objects(run, "rayjob", options(cpus=32)), "RayJob")["spec"]["rayClusterSpec"]
    assert [group["replicas"] for group in made["workerGroupSpecs"]] == [1]
    alone = objects(run_of("cuda", runtime="local"), "jobset", options(secret=""))
    assert pods(alone)[0]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
