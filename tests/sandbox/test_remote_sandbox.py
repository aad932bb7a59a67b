"""A remote executor, spoken to over a real HTTP server that answers in SandboxFusion's form."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

pytest.importorskip("httpx", reason="needs the extra serve")

from penstock.sandbox import Limits, Program, SandboxError, open_sandbox

LIMITS = Limits(seconds=5.0, output_bytes=100)


class Executor(BaseHTTPRequestHandler):
    """Runs Python without isolation; special codes give the answers of a server in trouble."""

    asked: list[dict] = []  # noqa: RUF012 - what all requests brought

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append(body)
        answer = {
            "late": {"status": "Failed", "run_result": {"status": "TimeLimitExceeded", "return_code": None, "stdout": "a"}},
            "broken": {"status": "SandboxError", "message": "no more pods", "run_result": None},
            "lost": {"status": "Failed", "run_result": {"status": "Error", "return_code": None}},
            "list": [1],
            "huge": {"status": "Success", "run_result": {"status": "Finished", "return_code": 0, "stdout": "x" * 5000}},
        }.get(body["code"])
        self.answer(200, json.dumps(answer or self.run(body)).encode()) if body["code"] != "500" else self.answer(500, b"no")

    def run(self, body):
        done = subprocess.run([sys.executable, "-c", body["code"]], input=body["stdin"], capture_output=True, text=True)
        said = {"return_code": done.returncode, "stdout": done.stdout, "stderr": done.stderr}
        result = {"status": "Finished", "execution_time": 0.25, **said}
        files = {name: body["files"].get(name, "") for name in body["fetch_files"]}
        return {"status": "Failed" if done.returncode else "Success", "message": "", "run_result": result, "files": files}

    def answer(self, status, content):
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def url():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Executor)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def run(url, code, **fields):
    return asyncio.run(open_sandbox(url, limits=LIMITS).run(Program(code=code, **fields)))


def test_a_program_goes_out_and_its_outcome_comes_back(url):
    outcome = run(url, "import sys; print(input() * 2); sys.exit(3)", stdin="ab", files={"f": b"x"}, collect=("f",))
    assert (outcome.stdout, outcome.exit, outcome.seconds, outcome.files) == ("abab\n", 3, 0.25, {"f": b"x"})
    asked = Executor.asked[-1]
    assert (asked["language"], asked["run_timeout"], asked["memory_limit_MB"]) == ("python", 5.0, 512)
    assert asked["files"] == {"f": base64.b64encode(b"x").decode()}


def test_a_time_limit_there_is_an_outcome_here(url):
    assert run(url, "late").stopped == "seconds"


def test_output_above_the_limit_is_cut_and_named(url):
    outcome = run(url, "huge")
    assert (outcome.stopped, len(outcome.stdout)) == ("output", 100)


@pytest.mark.parametrize(
    ("code", "said"), [("broken", "no more pods"), ("lost", "Error"), ("list", "did not run"), ("500", "500")]
)
def test_trouble_of_the_server_says_nothing_of_the_program(url, code, said):
    with pytest.raises(SandboxError, match=said):
        run(url, code)


def test_a_server_that_is_not_there_is_named():
    with pytest.raises(SandboxError, match=r"127.0.0.1:1/run_code failed"):
        run("http://127.0.0.1:1", "pass")


def test_many_programs_wait_for_one_another_without_threads(url):
    async def many():
        sandbox = open_sandbox(url, size=4, limits=LIMITS)
        outcomes = await asyncio.gather(*(sandbox.run(Program(code="huge")) for _ in range(40)))
        return len(outcomes)

    threads = threading.active_count()
    assert asyncio.run(many()) == 40
    assert threading.active_count() <= threads + 8


def test_a_command_cannot_be_sent(url):
    with pytest.raises(SandboxError, match="Python code"):
        asyncio.run(open_sandbox(url, limits=LIMITS).run(Program(argv=("ls",))))
