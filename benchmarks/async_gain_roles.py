"""Processes of ``async_gain.py``: forked from one that has imported everything, and put under declared conditions.

    python benchmarks/async_gain_roles.py serve SOCKET       # imports once, forks on request
    python -S -E benchmarks/async_gain_roles.py ask SOCKET CONDITIONS role | run RUN FOLDER

``ask`` has a process forked that works with the standard streams of the one that asked, and ends with its exit code; the
supervisor of a run takes it for the role itself. So a hundred runs need not import torch four hundred times. ``role``: the
forked process reads who it is from its standard input, as every role of ``runtime="procs"`` does. ``run``: it carries out the
whole run in one process.

Conditions are imposed on whoever generates, alike in all arms: each sample's length, a floor for each decode step, and an
environment that waits. They are functions of a sample's key and the run's seed alone.
"""

import atexit
import json
import os
import select
import socket
import sys

COMMAND = (sys.executable, "-S", "-E", os.path.abspath(__file__), "ask")
STANDARD_INPUT = 0
"""Of the process that forks: it ends with the benchmark."""


def ask(where: str, words: list[str]) -> int:
    """The asking side: hands its streams over and waits. No import but what is above, so that it starts in no time."""
    nowhere = os.open(os.devnull, os.O_WRONLY)  # what a run prints; its errors are shown
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(where)
        socket.send_fds(connection, [json.dumps([os.getcwd(), words]).encode()], [0, nowhere, 2])
        answer = connection.recv(64)
    return int(answer or b"70")


def serve(where: str) -> None:
    """Fork a process for everyone who asks, until the standard input ends."""
    import async_gain_conditions  # noqa: F401

    import penstock.engine.encoder_decoder
    import penstock.runtime.role
    import penstock.runtime.session
    import penstock.ui.report  # noqa: F401

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(where)
        listening.listen(64)
        print("ready", flush=True)
        while True:
            if STANDARD_INPUT in readable(listening.fileno(), STANDARD_INPUT):
                return
            connection, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                os._exit(attend(connection))
            connection.close()
            reap()


def readable(*descriptors: int) -> list[int]:
    """Those of some file descriptors that can be read, or have ended; waits for the first."""
    return select.select(descriptors, [], [])[0]


def reap() -> None:
    """Forget those who have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def attend(connection: socket.socket) -> int:
    """Fork who does the work, tell how it ended; if the one who asked is gone, or the benchmark, the work ends too."""
    said, streams, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    folder, words = json.loads(said)
    child = os.fork()
    if child == 0:
        code = 70
        try:
            os.setsid()
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
            os.closerange(3, 256)
            os.chdir(folder)
            code = work(words)
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            atexit._run_exitfuncs()  # spans are written there; a short run has written none before
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(code)
    for stream in streams:
        os.close(stream)
    ended = os.pidfd_open(child)
    if ended not in readable(ended, connection.fileno(), STANDARD_INPUT):
        os.killpg(child, 9)
        return 0
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    connection.sendall(str(code if code >= 0 else 128 - code).encode())
    return 0


def work(words: list[str]) -> int:
    """In the forked process: impose the conditions, then be a role or carry out a whole run."""
    from pathlib import Path

    from async_gain_conditions import impose
    from async_gain_task import Conditions

    from penstock.config.run import Run
    from penstock.config.spec import parse
    from penstock.runtime import launch, role

    impose(Conditions(**json.loads(words[0])))
    if words[1] == "role":
        return role.main()
    launch(parse(Run, json.loads(words[2])), Path(words[3]))
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        sys.exit(ask(sys.argv[2], sys.argv[3:]))
