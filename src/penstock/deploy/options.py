"""What a cluster must be asked for, and how many nodes a run takes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from penstock.config.spec import require

if TYPE_CHECKING:
    from penstock.config.run import Run

Target = Literal["rayjob", "trainjob", "jobset", "slurm"]
Gang = Literal["none", "kueue", "volcano"]

USUAL_GPUS = 8
"""GPUs of a node, unless it is said how many it has."""
LONGEST_NAME = 40
"""Characters of a name to which Kubernetes adds its own for pods and services, 63 in all."""
QUANTITY = re.compile(r"[1-9]\d*(Ki|Mi|Gi|Ti|M|G|T)")
SECRETIVE = re.compile(r"token|secret|password|credential|(?<![a-z])key(?![a-z])|[a-z]_key", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a cluster is asked for, besides the run itself."""

    image: str = ""
    """Container image with Penstock, such as registry.example/penstock:0.1.0 (the Dockerfile builds one); not for Slurm."""
    namespace: str = ""
    """Kubernetes namespace (default: that of kubectl's context)."""
    nodes: int = 0
    """Nodes, each one pod (0: as many as the run's placement needs)."""
    gpus: int = 0
    """GPUs of a node (0: what the run takes with --device cuda, at most 8)."""
    cpus: int = 8
    """Cores of a node."""
    memory: str = "32Gi"
    """Memory of a node, with what is in /dev/shm."""
    shm: str = "8Gi"
    """Size of /dev/shm, which NCCL and weights in shared memory use."""
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
    """Resource of an RDMA device, such as rdma/ib; asks for one a pod, and for IPC_LOCK (default: NCCL over TCP)."""
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
        for name, least in (("nodes", 0), ("gpus", 0), ("cpus", 1), ("grace", 30), ("retries", 0), ("ttl", 0)):
            require(getattr(self, name) >= least, f"--{name} {getattr(self, name)}; at least {least}")
        for name in ("memory", "shm", "claim_size"):
            text = getattr(self, name)
            good = not text or QUANTITY.fullmatch(text)
            require(bool(good), f'--{name.replace("_", "-")} {text} is no size; write one such as "32Gi"')
        require(not self.claim_size or bool(self.claim), "--claim-size is the size of a claim; add --claim NAME")
        require((self.gang == "none") == (not self.queue), "--gang and --queue go together: --gang kueue --queue NAME")
        for name in ("namespace", "claim", "secret"):
            require_kubernetes_name(f"--{name}", getattr(self, name))
        for pair in self.env:
            name, equals, _ = pair.partition("=")
            require(bool(equals and name.isidentifier()), f"--env {pair}: write NAME=VALUE")
            require(
                not SECRETIVE.search(name),
                f"--env {name}=… would print a secret into the manifest; put it into a Secret and name that: --secret NAME",
            )

    def need(self, flag: str, why: str) -> None:
        """Refuse a missing option. Raises SpecError."""
        require(bool(getattr(self, flag)), f"--{flag} is missing: {why}")


def require_kubernetes_name(what: str, name: str) -> None:
    """Refuse a name that Kubernetes would. Raises SpecError."""
    fits = not name or re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", name)
    require(bool(fits), f'{what} "{name}": Kubernetes takes small letters, digits and dashes, beginning with a letter')


@dataclass(frozen=True)
class Layout:
    """Nodes of a run, all alike, and the GPUs of each."""

    nodes: int
    gpus: int


def layout(run: Run, options: Options) -> Layout:
    """How many nodes a run takes.

    Raises:
        SpecError: it does not fit on the nodes that were asked for; says what does.
    """
    from penstock.config.roles import most_ranks, processes, roles

    require(
        run.device == "cuda" or not options.gpus,
        f'--gpus {options.gpus} would be left alone: device="{run.device}" takes no GPU in a cluster; add --device cuda',
    )
    if run.runtime != "ray":
        require(
            options.nodes <= 1,
            f'--nodes {options.nodes}: runtime="{run.runtime}" lives on one node; add --runtime ray, or leave --nodes out',
        )
        taken = float(most_ranks(run))
        if run.runtime == "procs":
            taken = sum(roles()[role].gpus(run) for role, _ in processes(run))
        needed = int(-(-taken // 1)) if run.device == "cuda" else 0
        require(
            not options.gpus or options.gpus >= most_ranks(run),
            f"--gpus {options.gpus}: the learner has {most_ranks(run)} ranks; give the node as many GPUs",
        )
        return Layout(1, options.gpus or needed)
    return _packed(run, options)


def _packed(run: Run, options: Options) -> Layout:
    """The placement's bundles on nodes that are alike: the largest first, each on the first node with room."""
    totals = [bundle.total for bundle in run.roles.placement.bundles(run).bundles]
    custom = sorted({name for total in totals for name in total} - {"CPU", "GPU"})
    require(
        not custom,
        f"the placement asks for nodes with {', '.join(custom)}, and the printed ones have none; leave [role] custom out",
    )
    needed = [(total.get("GPU", 0.0), total.get("CPU", 0.0)) for total in totals]
    gpus = options.gpus or min(USUAL_GPUS, int(-(-sum(gpu for gpu, _ in needed) // 1)))
    free: list[list[float]] = []
    for gpu, cpu in sorted(needed, reverse=True):
        require(
            gpu <= gpus,
            f"{gpu:g} GPUs of one node are needed, and a node has {gpus}; give it more with --gpus {gpu:g}, fewer ranks, or a "
            "--placement file with [rank], which places each rank by itself",
        )
        require(cpu <= options.cpus, f"{cpu:g} cores of one node are needed, and a node has {options.cpus}; add --cpus {cpu:g}")
        room = next((node for node in free if node[0] >= gpu and node[1] >= cpu), None)
        if room is None:
            free.append(room := [float(gpus), float(options.cpus)])
        room[0] -= gpu
        room[1] -= cpu
    require(
        not options.nodes or options.nodes >= len(free),
        f"--nodes {options.nodes}: the placement needs {len(free)} nodes of {gpus} GPUs and {options.cpus} cores each",
    )
    return Layout(options.nodes or len(free), gpus)
