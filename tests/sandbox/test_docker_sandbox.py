"""Containers, by the command line that is built: a stand-in for ``docker`` records it and runs the program as it is."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

import pytest

from penstock.sandbox import Limits, Program, Sandbox, SandboxError
from penstock.sandbox.docker import Docker
from penstock.sandbox.pool import open_sandbox

LIMITS = Limits(seconds=3.0, cpu_seconds=2, memory_bytes=2**28, output_bytes=1000, processes=8, file_bytes=2**20)
STAND_IN = """
import json, os, sys, tempfile
log, arguments = sys.argv[1], sys.argv[2:]
with open(log, "a") as file:
    file.write(json.dumps(arguments) + "\\n")
if arguments[0] == "image":
    sys.exit("Error: No such image" if arguments[2] == "absent" else 0)
if arguments[0] == "rm":
    os.killpg(int(open(log + "--name=" + arguments[2]).read()), 9)
if arguments[0] == "run":
    if "refused" in arguments:
        sys.exit(print("docker: Error response from daemon: no", file=sys.stderr) or 125)
    program = next(a for a in arguments if a.startswith("--volume=")).removeprefix("--volume=").removesuffix(":/program:ro")
    script = arguments[arguments.index("-c") + 1].replace("/program/", program + "/").replace("/work", ".")
    os.chdir(tempfile.mkdtemp(dir=os.path.dirname(log)))
    os.setpgid(0, 0)
    with open(log + next(a for a in arguments if a.startswith("--name=")), "w") as file:
        file.write(str(os.getpid()))
    os.execvp("sh", ["sh", "-c", script, *arguments[arguments.index("-c") + 2:]])
"""


@pytest.fixture
def docker(tmp_path):
    (tmp_path / "docker.py").write_text(STAND_IN)
    log = tmp_path / "log"

    def run(program, image="python:3.12-slim", runtime=""):
        sandbox = Sandbox(Docker(image, runtime, [sys.executable, str(tmp_path / "docker.py"), str(log)]), limits=LIMITS)
        return asyncio.run(sandbox.run(program))

    run.commands = lambda: [json.loads(line) for line in log.read_text().splitlines()]
    return run


def test_a_container_has_no_network_no_privilege_and_bounded_memory(docker):
    docker(Program(code="pass"), runtime="runsc")
    command = docker.commands()[-1]
    for option in (
        "--network=none", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--read-only", "--user=65534:65534",
        "--ipc=none",
        "--memory=268435456", "--memory-swap=268435456", "--pids-limit=10", "--ulimit=cpu=2", "--ulimit=fsize=1048576",
        "--tmpfs=/work:exec,rw,nosuid,nodev,size=1048576,mode=1777", "--pull=never", "--runtime=runsc", "--rm",
    ):  # fmt: skip
        assert option in command, option
    assert not any("privileged" in each for each in command if each != "--security-opt=no-new-privileges")


def test_output_input_files_and_exit_code_go_through(docker):
    outcome = docker(
        Program(code="import sys; print(input(), open('d/f').read()); sys.exit(4)", stdin="in", files={"d/f": b"x"})
    )
    assert (outcome.stdout, outcome.exit, outcome.stopped) == ("in x\n", 4, "")


def test_a_program_that_hangs_is_ended_by_the_name_of_its_container(docker):
    began = time.monotonic()
    outcome = docker(Program(argv=("sleep", "60"), limits=Limits(1.0, 1, 2**20, 10, 1, 10)))
    assert (outcome.stopped, time.monotonic() - began < 30) == ("seconds", True)
    run, remove = docker.commands()[-2:]
    assert remove == ["rm", "--force", next(each for each in run if each.startswith("--name=")).removeprefix("--name=")]


def test_endless_output_ends_the_container(docker):
    outcome = docker(Program(argv=("yes",)))
    assert (outcome.stopped, len(outcome.stdout)) == ("output", LIMITS.output_bytes)


def test_a_container_that_does_not_start_says_nothing_of_the_program(docker):
    with pytest.raises(SandboxError, match="response from daemon"):
        docker(Program(argv=("refused",)))


def test_no_program_passes_for_a_container_that_did_not_start(docker):
    assert docker(Program(code="raise SystemExit(125)")).exit == 1


def test_an_image_that_is_not_there_is_refused_before_any_program(docker):
    with pytest.raises(SandboxError, match="No such image"):
        docker(Program(code="pass"), image="absent")


def test_files_of_containers_are_not_collected(docker):
    with pytest.raises(SandboxError, match="use the jail"):
        docker(Program(code="pass", collect=("x",)))


def test_a_machine_without_docker_says_so(monkeypatch):
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(SandboxError, match="no command docker"):
        asyncio.run(open_sandbox("docker+runsc:image").run(Program(code="pass")))
