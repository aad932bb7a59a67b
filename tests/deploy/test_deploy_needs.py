"""What a run needs of image and network is there or refused, where its pods go can be said, and patches change the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from strict_schemas import objects
from test_manifests import TARGETS, faults, of_kind, options, pods, run_of

from penstock.core.errors import SpecError
from penstock.deploy.manifests import render
from penstock.deploy.options import Options

KNOBS: dict[str, Any] = {
    "node_labels": ("gpu=h100",), "tolerations": ("spot:NoSchedule", "team=rl:NoExecute"), "priority_class": "high",
    "runtime_class": "nvidia", "pull_secret": "registry", "service_account": "trainer", "pod_labels": ("example.com/team=rl",),
    "pod_annotations": ("example.com/note=a b",), "data_claim": "corpora:/data", "rdma": "rdma/ib", "rdma_devices": 8,
    "operator": False,
}  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
def test_where_pods_go_and_what_marks_them(target: Any) -> None:
    made = objects(run_of("cuda"), target, options(nodes=2, **KNOBS))
    assert faults(made) == []
    assert not {"PodMonitor", "PrometheusRule"} & {one["kind"] for one in made}
    assert all(one["metadata"]["labels"]["example.com/team"] == "rl" for one in made)
    for pod in pods(made):
        spec = pod["spec"]
        assert (spec["nodeSelector"], spec["priorityClassName"]) == ({"gpu": "h100"}, "high")
        assert (spec["runtimeClassName"], spec["serviceAccountName"]) == ("nvidia", "trainer")
        assert spec["imagePullSecrets"] == [{"name": "registry"}]
        assert spec["tolerations"] == [
            {"key": "spot", "effect": "NoSchedule", "operator": "Exists"},
            {"key": "team", "effect": "NoExecute", "operator": "Equal", "value": "rl"},
        ]
        assert spec["containers"][0]["resources"]["limits"]["rdma/ib"] == "8"
        assert {"name": "data", "mountPath": "/data", "readOnly": True} in spec["containers"][0]["volumeMounts"]
        assert pod["metadata"]["annotations"]["example.com/note"] == "a b"


def test_a_single_pod_that_is_taken_away_is_no_failure() -> None:
    made = of_kind(objects(run_of("cpu"), "jobset", options()), "JobSet")
    rules = made["spec"]["replicatedJobs"][0]["template"]["spec"]["podFailurePolicy"]["rules"]
    assert rules[1] == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}


@pytest.mark.parametrize(
    ("address", "rule"),
    [
        ("http://minio:9000", ({"podSelector": {}}, 9000)),
        ("http://m.lab.svc:80", ({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "lab"}}}, 80)),
        ("https://10.0.0.7", ({"ipBlock": {"cidr": "10.0.0.7/32"}}, 443)),
    ],
)
def test_the_port_of_a_named_server_is_opened(address: str, rule: tuple[Any, int]) -> None:
    made = objects(run_of("cpu"), "jobset", options(env=(f"AWS_ENDPOINT_URL={address}",)))
    assert faults(made) == []
    last = of_kind(made, "NetworkPolicy")["spec"]["egress"][-1]
    assert (last["to"][0], last["ports"][0]["port"]) == rule


def test_a_patch_merges_by_name_and_deletes(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("""
kind: JobSet
spec:
  ttlSecondsAfterFinished: null
  replicatedJobs:
  - name: node
    template: {spec: {template: {spec: {containers: [{name: node, env: [{name: A, value: b}]}]}}}}
""")
    plain, made = (objects(run_of("cpu"), "jobset", options(patch=one)) for one in ("", str(file)))
    assert faults(made) == []
    env = [pods(one)[0]["spec"]["containers"][0].pop("env") for one in (plain, made)]
    assert env[1] == [*env[0], {"name": "A", "value": "b"}]
    del of_kind(plain, "JobSet")["spec"]["ttlSecondsAfterFinished"]
    assert made == plain


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kind: Pod\nspec: {}", "there is no Pod"),
        ("- a", "a patch is a map"),
        ("a: [", "--patch"),
        ("", "is empty"),
        ("kind: JobSet\nspec: {replicatedJobs: null}", "a container of its pods"),
    ],
)
def test_a_patch_that_does_not_fit_is_refused(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(text)
    with pytest.raises(SpecError, match=words):
        render(run_of("cpu"), "jobset", options(patch=str(file)))


REFUSED: list[tuple[tuple[str, str], dict[str, Any], str]] = [
    (("monitors", '["wandb"]'), {}, "--build-arg EXTRAS=.*,wandb"),
    (("grpo.learner.optimizer", "AdamW8bit"), {}, "adam8bit"),
    (("monitors", '["otlp"]'), {}, "otlp:http://HOST:4318"),
    (("seed", "1"), {"env": ("A=http://localhost:1",)}, "the pod itself"),
    (("seed", "1"), {"env": ("A=http://169.254.169.254",)}, "credentials"),
    (("seed", "1"), {"env": ("A=http://h:99999",)}, "no address"),
    (("seed", "1"), {"extras": "rya"}, 'no extra "rya"'),
    (("seed", "1"), {"tolerations": ("spot",)}, "NoSchedule"),
    (("seed", "1"), {"node_labels": ("gpu",)}, "KEY=VALUE"),
    (("seed", "1"), {"pod_labels": ("app.kubernetes.io/name=a",)}, "choose another key"),
    (("seed", "1"), {"data_claim": "corpora:/tmp"}, "CLAIM:/PATH"),
    (("seed", "1"), {"rdma_devices": 2}, "--rdma RESOURCE"),
    (("seed", "1"), {"priority_class": "Very High"}, "--priority-class"),
    (("grpo.rewards", '[{"function": "code", "options": {"sandbox": "docker:python"}}]'), {}, "a pod has no Docker"),
]


@pytest.mark.parametrize(("leaf", "more", "words"), REFUSED)
def test_what_a_cluster_would_not_carry_out_is_refused(leaf: tuple[str, str], more: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        render(run_of("cpu", leaf), "jobset", options(**more))


def test_slurm_says_which_flag_of_sbatch_does_it() -> None:
    with pytest.raises(SpecError, match="sbatch: -C FEATURE"):
        render(run_of("cpu"), "slurm", Options(node_labels=("gpu=h100",)))


def test_pods_with_rdma_take_no_capability_and_the_manifest_says_what_nodes_need() -> None:
    text = render(run_of("cuda"), "jobset", options(nodes=2, rdma="rdma/ib"))
    assert "IPC_LOCK" not in text
    assert "# RDMA pins memory" in text


def test_a_store_may_be_reached_as_a_service_account() -> None:
    store = ("checkpoint.store", "s3://runs/team")
    with pytest.raises(SpecError, match="--secret"):
        render(run_of("cpu", store), "jobset", options(secret=""))
    assert "serviceAccountName" in render(run_of("cpu", store), "jobset", options(secret="", service_account="trainer"))
