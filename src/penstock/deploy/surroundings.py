"""What a run's pods need around them: spec, volume, network policy, and what watches them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.deploy.job import Job
from penstock.deploy.pods import labels, metadata
from penstock.observe.monitors.dashboard import alert_rules

Object = dict[str, Any]

OPERATORS = {"app.kubernetes.io/name": "kuberay-operator"}
"""Pods that ask a Ray head how its job is."""
PROMETHEUS = {"app.kubernetes.io/name": "prometheus"}
"""Pods that read metrics."""
CLOUD_METADATA = "169.254.169.254/32"
"""Where clouds give every pod of a node the node's credentials."""


def surroundings(job: Job, first: Mapping[str, str]) -> list[Object]:
    """All objects besides what starts the pods, in the order they are needed. ``first``: labels of the pod with the run."""
    spec = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata(job, f"{job.run.name}-spec")}
    spec |= {"data": {"run.json": job.spec(served=True)}}
    return [spec, *([_claim(job)] if job.options.claim_size else []), network_policy(job), *_watched(job, first)]


def _claim(job: Job) -> Object:
    """A claim that outlives the run; on several nodes all of them write it."""
    mode = "ReadWriteMany" if job.several else "ReadWriteOnce"
    spec = {"accessModes": [mode], "resources": {"requests": {"storage": job.options.claim_size}}}
    made = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata(job, job.options.claim), "spec": spec}
    return made


def network_policy(job: Job) -> Object:
    """The run's pods speak with each other and with DNS; who watches may come in, and HTTPS out where the run needs it."""
    same: Object = {"podSelector": {"matchLabels": labels(job)}}
    anywhere: Object = {"namespaceSelector": {}}
    dns: Object = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}
    local_dns = {"ipBlock": {"cidr": "169.254.20.10/32"}}  # a cache on the node, where there is one
    egress: list[Object] = [
        {"to": [same]},
        {"to": [dns, local_dns], "ports": [{"port": 53, "protocol": name} for name in ("UDP", "TCP")]},
    ]
    if job.reaches_out:
        outside = [{"ipBlock": {"cidr": "0.0.0.0/0", "except": [CLOUD_METADATA]}}, {"ipBlock": {"cidr": "::/0"}}]
        egress.append({"to": outside, "ports": [{"port": 443, "protocol": "TCP"}]})
    ingress: list[Object] = [
        {"from": [same]},
        {"from": [anywhere | {"podSelector": {"matchLabels": PROMETHEUS}}], "ports": [{"port": "metrics", "protocol": "TCP"}]},
        {"from": [anywhere | {"podSelector": {"matchLabels": OPERATORS}}], "ports": [{"port": 8265, "protocol": "TCP"}]},
    ]
    spec = {"podSelector": {"matchLabels": labels(job)}, "policyTypes": ["Ingress", "Egress"], "ingress": ingress}
    made = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata(job)}
    return made | {"spec": {**spec, "egress": egress}}


def _watched(job: Job, first: Mapping[str, str]) -> list[Object]:
    """Prometheus reads ``/metrics`` of the pod that has the run's command, and alarms by the rules of every run."""
    version = "monitoring.coreos.com/v1"
    selector = {"matchLabels": {**labels(job), **first}}
    spec = {"selector": selector, "podMetricsEndpoints": [{"port": "metrics", "interval": "15s"}]}
    return [
        {"apiVersion": version, "kind": "PodMonitor", "metadata": metadata(job), "spec": spec},
        {"apiVersion": version, "kind": "PrometheusRule", "metadata": metadata(job), "spec": alert_rules()},
    ]
