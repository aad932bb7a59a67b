"""A Grafana dashboard and Prometheus alert rules over what a run serves at ``/metrics``. A test holds every metric that they
name against a real scrape."""

from __future__ import annotations

import itertools
from typing import Any

PANELS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("Reward", "short", ("reward_mean", "evaluation_reward")),
    ("Step", "short", ("step",)),
    ("Seconds a step", "s", ("step_seconds", "seconds_trained", "seconds_waited", "seconds_generated")),
    ("Log-prob gap of learner and generators", "short", ("mismatch_mean", "mismatch_kl", "policy_approx_kl")),
    ("Entropy", "short", ("entropy_sampled",)),
    ("Length, tokens", "short", ("length_mean", "length_max")),
    ("Cut, failed, flat", "percentunit", ("finish_cut", "samples_failed_share", "groups_flat", "policy_clip_fraction")),
    ("Gradient norm", "short", ("gradient_norm",)),
    ("Lag of trained tokens, versions", "short", ("lag_mean", "lag_max")),
    ("Generated, tokens/s", "short", ("generation_tokens_per_second",)),
    ("Alarms", "short", ("alarms_total",)),
    ("GPU: units at work", "percentunit",
     ("machine_gpu_sm_active", "machine_gpu_tensor_active", "machine_gpu_dram_active", "machine_gpu_kernel_running")),
    ("GPU memory", "percentunit", ("machine_gpu_memory",)),
    ("Cores of each role", "short", ("machine_role_cpu_cores",)),
    ("Memory of each role, GB", "short", ("machine_role_memory_gb",)),
    ("CPU, memory and disk of each node", "percentunit", ("machine_node_cpu", "machine_node_memory", "machine_node_disk")),
    ("Network, MB/s", "short", ("machine_node_network_received_mb_s", "machine_node_network_sent_mb_s")),
)  # fmt: skip
"""Title, unit and metrics of each panel."""

ONE_RUN = "(namespace, instance, run)"
"""What tells two runs of one name apart; labels that nobody puts on are as good as equal."""


def silent(metric: str, seconds: int) -> str:
    """That what a metric has the time of last happened so long ago, or, if it never did, that the run began so long ago."""
    last = f"max by {ONE_RUN} (penstock_{metric}) or max by {ONE_RUN} (penstock_begun_timestamp_seconds)"
    return f"(time() - ({last})) > {seconds} unless on {ONE_RUN} penstock_finished == 1"


ALERTS: tuple[tuple[str, str, str, str, str], ...] = (
    ("PenstockStuck", "critical", "0m",
     silent("last_step_timestamp_seconds", 900),
     "no step for 15 minutes: see RUN/logs and penstock timeline RUN for who waits for whom"),
    ("PenstockNoCheckpoint", "warning", "0m",
     silent("checkpoint_timestamp_seconds", 14400),
     "no checkpoint for 4 hours: lower checkpoint.every"),
    ("PenstockFatalSentinel", "critical", "0m", 'time() - penstock_alarm_timestamp_seconds{severity="fatal"} < 900',
     "a sentinel found that training would be wrong; the run's log says what to change"),
    ("PenstockSentinel", "warning", "0m", 'time() - penstock_alarm_timestamp_seconds{severity="warning"} < 900',
     "a sentinel tripped; the run's log says what to change"),
    ("PenstockPoliciesApart", "warning", "5m", "penstock_mismatch_kl > 0.05",
     "learner and generators compute different log-probs; see docs/sentinels.md"),
    ("PenstockSamplesFail", "warning", "5m", "penstock_samples_failed_share > 0.2",
     "a fifth of the samples fail: look at their errors on the live page"),
    ("PenstockMemory", "warning", "5m", "penstock_machine_node_memory > 0.95", "a node's memory is nearly full"),
    ("PenstockDisk", "critical", "5m", "penstock_machine_node_disk > 0.95", "a disk is nearly full; a checkpoint may fail"),
)  # fmt: skip
"""Name, severity, how long it must hold, the condition, and what to do."""


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it: a run is chosen above, a panel for each of :data:`PANELS`."""
    source = {"type": "prometheus", "uid": "${source}"}
    panels = []
    for place, (title, unit, metrics) in enumerate(PANELS):
        targets = [
            {"refId": chr(ord("A") + number), "expr": f'penstock_{name}{{run=~"$run"}}', "legendFormat": legend(name)}
            for number, name in enumerate(metrics)
        ]
        position = {"x": 8 * (place % 3), "y": 8 * (place // 3), "w": 8, "h": 8}
        panels.append(
            {
                "id": place + 1,
                "type": "timeseries",
                "title": title,
                "datasource": source,
                "gridPos": position,
                "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
                "targets": targets,
            }
        )
    run = {"name": "run", "type": "query", "datasource": source, "query": "label_values(penstock_step, run)", "refresh": 2}
    variables = [{"name": "source", "type": "datasource", "query": "prometheus"}, {**run, "includeAll": True, "multi": True}]
    return {
        "title": "Penstock runs",
        "uid": "penstock-runs",
        "schemaVersion": 39,
        "tags": ["penstock"],
        "refresh": "10s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": variables},
        "panels": panels,
    }


def legend(metric: str) -> str:
    """What tells the curves of a metric apart."""
    labels = {
        "alarms": "{{sentinel}}",
        "machine_role": "{{role}}",
        "machine_node": "{{node}}",
        "machine_gpu": "{{node}} {{gpu}}",
    }
    found = next((label for name, label in labels.items() if metric.startswith(name)), "{{stage}}")
    return f"{metric} {{{{run}}}} {found}"


def alert_rules() -> dict[str, Any]:
    """The rules as a file of Prometheus holds them, or the ``spec`` of a PrometheusRule."""
    rules = [
        {
            "alert": name,
            "expr": condition,
            "for": holds,
            "labels": {"severity": severity},
            "annotations": {"summary": f"{name} ({{{{ $labels.run }}}})", "description": what},
        }
        for name, severity, holds, condition, what in ALERTS
    ]
    return {"groups": [{"name": "penstock", "rules": rules}]}


def expressions() -> list[str]:
    """Every expression of both."""
    targets = itertools.chain.from_iterable(panel["targets"] for panel in dashboard()["panels"])
    return [*(target["expr"] for target in targets), *(rule["expr"] for rule in alert_rules()["groups"][0]["rules"])]
