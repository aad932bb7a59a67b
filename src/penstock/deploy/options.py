"""What a cluster is asked for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from penstock.config.spec import require

Target = Literal["rayjob", "trainjob", "jobset", "slurm"]
Gang = Literal["none", "kueue", "volcano"]

IMAGE_EXTRAS = "math,gym,hub,lora,ray,serve,monitors,s3,feedback"
"""What the Dockerfile installs by default."""
LONGEST_NAME = 40
"""Characters of a name to which Kubernetes adds its own for pods and services, 63 in all."""
QUANTITY = re.compile(r"([1-9]\d*)(Ki|Mi|Gi|Ti|M|G|T)")
IMAGE = re.compile(r"[a-z0-9][\w.-]*(:\d+)?(/[a-z0-9][a-z0-9._-]*)*(:\w[\w.-]*)?(@sha256:[0-9a-f]{64})?")
QUALIFIED = re.compile(r"([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
"""A label or a resource, as Kubernetes names them."""
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
TOLERATION = re.compile(r"([^=:]+)(?:=([^=:]*))?:(NoSchedule|PreferNoSchedule|NoExecute)")
DATA_CLAIM = re.compile(r"([a-z0-9-]+):((?:/(?!\.+(?:/|$))[\w.-]+)+)")
MOUNTED = ("/penstock", "/dev/shm", "/tmp", "/etc/penstock")
"""Where pods have something already."""
SECRETIVE = re.compile(r"token|secret|password|credential|(?<![a-z])key(?![a-z])|[a-z]_key", re.IGNORECASE)
SECRET = re.compile(
    r"://[^/@\s]*:[^/@\s]+@|\b(AKIA|ASIA)[A-Z0-9]{12,}|\b(hf|gh[pousr]|glpat|xox[abp]|sk|rk)[-_][\w-]{16,}|-----BEGIN "
)
"""What keys and passwords of well-known services look like, whatever the variable is called."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a cluster is asked for, besides the run itself."""

    image: str = ""
    """Container image with Penstock, such as registry.example/penstock:0.1.0 (the Dockerfile builds one); not for Slurm."""
    extras: str = IMAGE_EXTRAS
    """What the image was built with, its EXTRAS and PACKAGES, separated by commas; what the run needs is compared with it."""
    namespace: str = ""
    """Kubernetes namespace (default: that of kubectl's context)."""
    nodes: int = 0
    """Nodes, each one pod (0: as many as the run's placement needs)."""
    gpus: int = 0
    """GPUs of a node (0: what the run takes with --device cuda, at most 8)."""
    cpus: int = 0
    """Cores of a node (0: what the processes on it take, at least 8)."""
    memory: str = "32Gi"
    """Memory of a node, with what is in /dev/shm."""
    shm: str = ""
    """Size of /dev/shm, which NCCL and weights in shared memory use (default: a quarter of the memory, at most 8Gi)."""
    claim: str = ""
    """PersistentVolumeClaim for runs and caches, mounted at /penstock; on several nodes one that all can write."""
    claim_size: str = ""
    """Print the claim too, with this size, such as 200Gi (default: it exists)."""
    secret: str = ""
    """Secret whose keys become environment variables (HF_TOKEN, AWS_ACCESS_KEY_ID …); auth_token is the Ray cluster's."""
    gang: Gang = "none"
    """Who starts all pods at once or none: kueue, volcano, or nobody."""
    queue: str = ""
    """Queue of Kueue or Volcano."""
    topology: str = ""
    """Label of nodes that are close, such as a rack's: pods are put where it is the same, if there is room."""
    rdma: str = ""
    """Resource of an RDMA device, such as rdma/ib (default: NCCL over TCP)."""
    rdma_devices: int = 1
    """RDMA devices of a pod."""
    data_claim: str = ""
    """CLAIM:/PATH: a PersistentVolumeClaim with data, mounted there to be read only."""
    node_labels: tuple[str, ...] = ()
    """Labels of the nodes that pods may go to, LABEL=VALUE."""
    tolerations: tuple[str, ...] = ()
    """Taints of nodes that pods may go to all the same, KEY:EFFECT or KEY=VALUE:EFFECT."""
    priority_class: str = ""
    """PriorityClass of the pods."""
    runtime_class: str = ""
    """RuntimeClass of the pods, such as nvidia."""
    pull_secret: str = ""
    """Secret with which the image is pulled."""
    service_account: str = ""
    """ServiceAccount of the pods; where it is a workload identity, an object store needs no Secret."""
    pod_labels: tuple[str, ...] = ()
    """Further labels of pods and objects, LABEL=VALUE."""
    pod_annotations: tuple[str, ...] = ()
    """Further annotations of pods and objects, KEY=VALUE."""
    operator: bool = True
    """Print the PodMonitor and PrometheusRule of Prometheus' operator; not where its CustomResourceDefinitions are missing."""
    patch: str = ""
    """A YAML file of patches of the printed objects; see docs/deploy.md."""
    https: bool = False
    """Pods may open HTTPS connections to anywhere; they may anyway where the run names a model or data of the hub."""
    env: tuple[str, ...] = ()
    """Further environment variables, NAME=VALUE; no secrets."""
    grace: int = 300
    """Seconds that a run has to finish its step and save when it is stopped."""
    retries: int = 5
    """Times that a run that failed is started again; it goes on from its last checkpoint."""
    ttl: int = 86400
    """Seconds after which a finished job is deleted from Kubernetes; runs stay."""

    def __post_init__(self) -> None:
        for name, least in (
            ("nodes", 0),
            ("gpus", 0),
            ("cpus", 0),
            ("grace", 30),
            ("retries", 0),
            ("ttl", 0),
            ("rdma_devices", 1),
        ):
            require(getattr(self, name) >= least, f"--{name.replace('_', '-')} {getattr(self, name)}; at least {least}")
        for name in ("memory", "shm", "claim_size"):
            text = getattr(self, name)
            good = (not text and name != "memory") or QUANTITY.fullmatch(text)
            require(bool(good), f'--{name.replace("_", "-")} {text} is no size; write one such as "32Gi"')
        require(
            not self.shm or _bytes(self.shm) <= _bytes(self.memory),
            f"--shm {self.shm} is above --memory {self.memory}, which it is a part of; raise --memory",
        )
        for name, form, like in (
            ("image", IMAGE, "registry.example/penstock:0.1.0"),
            ("topology", QUALIFIED, "topology.kubernetes.io/rack"),
            ("rdma", QUALIFIED, "rdma/ib"),
        ):
            text = getattr(self, name)
            require(not text or form.fullmatch(text) is not None, f'--{name} "{text}" is none; write one such as {like}')
        require(not self.claim_size or bool(self.claim), "--claim-size is the size of a claim; add --claim NAME")
        require((self.gang == "none") == (not self.queue), "--gang and --queue go together: --gang kueue --queue NAME")
        require_kubernetes_name("--namespace", self.namespace)
        for name in ("claim", "secret", "queue", "priority_class", "runtime_class", "pull_secret", "service_account"):
            require_kubernetes_name(f"--{name.replace('_', '-')}", getattr(self, name), dots=True)
        require(self.rdma_devices == 1 or bool(self.rdma), "--rdma-devices counts devices; name them: --rdma RESOURCE")
        self._check_scheduling()
        for pair in self.env:
            name, equals, value = pair.partition("=")
            require(bool(equals and name.isidentifier()), f"--env {pair}: write NAME=VALUE")
            require(
                not SECRETIVE.search(name) and not SECRET.search(value),
                f"--env {name}=… would print a secret into the manifest; put it into a Secret and name that: --secret NAME",
            )

    def _check_scheduling(self) -> None:
        """Refuse what Kubernetes would of where pods go and how they are marked. Raises SpecError."""
        for name in ("node_labels", "pod_labels", "pod_annotations"):
            flag = f"--{name.replace('_', '-')}"
            for pair in getattr(self, name):
                key, equals, value = pair.partition("=")
                good = QUALIFIED.fullmatch(key) and equals and (name == "pod_annotations" or LABEL_VALUE.fullmatch(value))
                require(bool(good), f'{flag} "{pair}": write KEY=VALUE, such as example.com/team=rl')
                taken = name != "node_labels" and key.startswith(("app.kubernetes.io/", "kueue.x-k8s.io/"))
                require(not taken, f"{flag} {key}: the run's own objects are found by it; choose another key")
                require(not SECRET.search(value), f"{flag} {key}=… would print a secret; put it into a Secret: --secret NAME")
            keys = [pair.partition("=")[0] for pair in getattr(self, name)]
            require(len(keys) == len(set(keys)), f"{flag} names a key twice")
        for taint in self.tolerations:
            found = TOLERATION.fullmatch(taint)
            good = found and QUALIFIED.fullmatch(found[1]) and LABEL_VALUE.fullmatch(found[2] or "")
            require(bool(good), f'--tolerations "{taint}": write KEY=VALUE:NoSchedule, or KEY:NoSchedule for any value')
        found = DATA_CLAIM.fullmatch(self.data_claim)
        require(
            not self.data_claim or bool(found and found[2] not in MOUNTED),
            f'--data-claim "{self.data_claim}": write CLAIM:/PATH, such as corpora:/data, and none of {", ".join(MOUNTED)}',
        )
        require_kubernetes_name("--data-claim", found[1] if found else "")

    @property
    def tolerated(self) -> list[dict[str, str]]:
        """The tolerations as pods have them."""
        found = [match for taint in self.tolerations if (match := TOLERATION.fullmatch(taint))]
        return [
            {
                "key": one[1],
                "effect": one[3],
                **({"operator": "Exists"} if one[2] is None else {"operator": "Equal", "value": one[2]}),
            }
            for one in found
        ]

    @property
    def shared_memory(self) -> str:
        """The size of /dev/shm."""
        return self.shm or f"{min(8 * 1024, _bytes(self.memory) // 4 // 1024**2)}Mi"

    def need(self, flag: str, why: str) -> None:
        """Refuse a missing option. Raises SpecError."""
        require(bool(getattr(self, flag)), f"--{flag} is missing: {why}")


def _bytes(text: str) -> int:
    """A size in bytes."""
    found = QUANTITY.fullmatch(text)
    assert found is not None
    binary = found[2].endswith("i")
    return int(found[1]) * (1024 if binary else 1000) ** (" KMGT".index(found[2][0]))


def require_kubernetes_name(what: str, name: str, dots: bool = False) -> None:
    """Refuse a name that Kubernetes would; ``dots``: of an object that is there already, which may have some and begin with a
    digit. Raises SpecError."""
    form = r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?" if dots else r"[a-z]([a-z0-9-]*[a-z0-9])?"
    fits, more = not name or re.fullmatch(form, name), " and dots" if dots else ", beginning with a letter"
    require(bool(fits), f'{what} "{name}": Kubernetes takes small letters, digits and dashes{more}')
