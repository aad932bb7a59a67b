"""A Slurm cluster of one node on this machine: munged, slurmctld and slurmd of a test's own, in a folder of its own."""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol")
SBIN = "/usr/sbin"
STARTING = 60.0

CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,requeue_delay=1
JobRequeue=1
KillWait=30
ReturnToService=2
MpiDefault=none
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=4000 State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> list[str]:
    """The programs that are not installed."""
    path = os.pathsep.join([os.environ.get("PATH", ""), SBIN])
    return [name for name in PROGRAMS if shutil.which(name, path=path) is None]


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


class OneNode:
    """Start it; :meth:`close` ends it and its jobs."""

    def __init__(self, folder: Path) -> None:
        self.folder, host = folder, socket.gethostname().partition(".")[0]
        for name in ("state", "spool"):
            (folder / name).mkdir()
        folder.chmod(0o755)  # munge refuses a socket in a folder that others cannot enter
        key = folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        text = CONFIGURATION.format(
            host=host, user=getpass.getuser(), folder=folder, ports=free_ports(2), cpus=os.cpu_count() or 1
        )
        (folder / "slurm.conf").write_text(text)
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "PATH": f"{os.environ['PATH']}:{SBIN}"}
        munge = [f"--{name}={folder}/munge.{end}" for name, end in (
            ("key-file", "key"), ("socket", "socket"), ("pid-file", "pid"), ("log-file", "log"), ("seed-file", "seed"),
        )]  # fmt: skip
        self.daemons = [self._daemon("munged", "--foreground", "--force", *munge)]
        self._until(lambda: (folder / "munge.socket").exists(), "munge's socket")
        self.daemons += [self._daemon("slurmctld", "-D"), self._daemon("slurmd", "-D", "-N", host)]
        self._until(lambda: "idle" in self.ask("sinfo", "--noheader", "--format=%t"), "an idle node")

    def _daemon(self, *words: str) -> subprocess.Popen[bytes]:
        with open(self.folder / f"{words[0]}.out", "ab") as out:
            return subprocess.Popen(words, env=self.environment, stdout=out, stderr=out, start_new_session=True)

    def _until(self, ready, what: str, seconds: float = STARTING) -> None:
        deadline = time.monotonic() + seconds
        while not ready():
            logs = "\n".join(
                f"{file.name}: {file.read_text(errors='replace')[-800:]}" for file in self.folder.glob("*.[lo]*[gt]")
            )
            assert time.monotonic() < deadline, f"no {what} in {seconds} s\n{logs}"
            time.sleep(0.1)

    def ask(self, *words: str, given: str = "", folder: Path | None = None) -> str:
        """What a program of Slurm prints."""
        done = subprocess.run(
            words, env=self.environment, input=given, cwd=folder, capture_output=True, text=True, timeout=60, check=False
        )
        return done.stdout + done.stderr

    def state(self, job: str) -> str:
        """Of a job: ``PENDING``, ``RUNNING``, ``COMPLETED`` …"""
        fields = dict(word.partition("=")[::2] for word in self.ask("scontrol", "show", "job", job).split())
        return fields.get("JobState", "")

    def close(self) -> None:
        self.ask("scancel", f"--user={getpass.getuser()}", "--signal=KILL")
        self.ask("scancel", f"--user={getpass.getuser()}")
        with suppress(AssertionError):
            self._until(lambda: not self.ask("squeue", "--noheader").strip(), "end of all jobs", 40.0)
        for daemon in reversed(self.daemons):
            daemon.terminate()
            with suppress(subprocess.TimeoutExpired):
                daemon.wait(15)
            daemon.kill()
            daemon.wait(15)
