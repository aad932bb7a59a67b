"""A batch script of Slurm: the run on one node, or as a Ray cluster of several, that is queued again when it is preempted."""

from __future__ import annotations

import shlex

from penstock.config.spec import require
from penstock.deploy.job import Job

PORT = '"$port"'
DELIMITER = "END OF RUN.JSON"

HEADER = """#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task={cpus}
#SBATCH --mem={memory}
{gpus}#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output={name}-%j.log
#SBATCH --signal=B:USR1@{grace}
# Submit it in a folder that all nodes see; the run goes to runs/{name} there. Partition, account, time: sbatch -p … -A … -t …
{remarks}set -u
export PENSTOCK_ATTEMPT="${{SLURM_RESTART_COUNT:-0}}" PYTHONUNBUFFERED=1 RAY_USAGE_STATS_ENABLED=0 NCCL_DEBUG=WARN
{env}spec="$(mktemp -d)/run.json"
cat >"$spec" <<'{delimiter}'
{spec}{delimiter}
"""

CLUSTER = """
# A Ray cluster of the job's own, with a token that no other job knows.
head="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)" port=$((20000 + SLURM_JOB_ID % 20000))
RAY_AUTH_TOKEN="$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')"
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN RAY_ADDRESS="$head:$port"
{start_head} || exit 1
srun --nodes={others} --ntasks={others} --exclude="$head" --cpus-per-task={cpus} {start_node} &
"""

ENDING = """
# Before the time limit or a preemption Slurm sends USR1 to this script: the run finishes its step, saves, is queued again.
# TERM goes to all processes, so to the run itself.
run="" asked=""
trap 'asked=yes; [ -z "$run" ] || kill -TERM "$run"' USR1
trap : TERM
{command} &
run=$!
wait "$run"
code=$?
while [ "$code" = 138 ] || [ "$code" = 143 ]; do # a signal ended the wait, not the run
  wait "$run"
  again=$?
  [ "$again" != 127 ] || break
  code=$again
done
rm -rf "${{spec%/*}}"
case "$asked $code" in
*" 0" | *" 2") ;;                                                     # done, or something that has to be mended first
"yes "*) scontrol requeue "$SLURM_JOB_ID" ;;                          # stopped
*) [ "$PENSTOCK_ATTEMPT" -ge {retries} ] || [ "$code" = 130 ] || scontrol requeue "$SLURM_JOB_ID" ;; # failed
esac
exit "$code"
"""


def script(job: Job) -> str:
    """The batch script.

    Raises:
        SpecError: an option that Slurm knows otherwise, or several nodes without Ray.
    """
    options, nodes = job.options, job.layout.nodes
    foreign = ("image", "namespace", "claim", "secret", "queue", "topology", "rdma")
    given = [f"--{name}" for name in foreign if getattr(options, name)]
    require(
        not given, f"{', '.join(given)}: not for Slurm, where the submitting folder, its Python and sbatch's own flags count"
    )
    text = HEADER.format(
        name=job.run.name, nodes=nodes, cpus=options.cpus, memory=options.memory.removesuffix("i"), grace=options.grace,
        gpus=f"#SBATCH --gpus-per-node={job.layout.gpus}\n" if job.layout.gpus else "",
        remarks="".join(f"# {remark}\n" for remark in job.remarks), spec=job.spec(served=False), delimiter=DELIMITER,
        env="".join(f"export {name}={shlex.quote(value)}\n" for name, _, value in (one.partition("=") for one in options.env)),
    )  # fmt: skip
    if job.several:
        text += CLUSTER.format(
            start_head=job.start_ray(PORT), start_node=job.start_ray(PORT, '"$head"'), others=nodes - 1, cpus=options.cpus
        )
    return text + ENDING.format(command=job.command("$spec").replace("'$spec'", '"$spec"'), retries=options.retries)
