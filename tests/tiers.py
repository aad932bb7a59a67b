"""Which tests are fast, and what each costs: CPU seconds of its own process and of the processes that it starts.

The fast tier is every test that costs at most :data:`LIMIT` CPU seconds, and the cheapest test of a file whose others all cost
more. The rest is slow; the markers ``slow`` and ``fast`` are put on here, from what ``tests/costs.json`` holds, never by hand.
Runs that learn to a reward are marked ``learning("folder", …)`` by hand, with the folders of the package that they depend on;
what these import counts too (``tests/code_digest.py``).

    pytest --tier fast                       that tier; fails if a test has grown above it
    pytest --tier slow                       the rest, and properties again with more examples
    pytest --tier learning --changed         those whose code changed since they last passed (tests/learned.json)
    pytest --tier learning --record-learned  … and write that they passed
    pytest --record-costs                    write what the tests that run cost into tests/costs.json (make costs: all tests)
    pytest --strict-skips                    fail for a skip that tests/allowed_skips.txt does not name
    python tests/tiers.py fast               a line: what the tier covers and how long it takes here

Imports and what is built once for a session are counted apart, since they are paid once whatever runs. What is built once for a
file is shared out among the tests that use it, but counted whole for each if it costs more than :data:`SMOKE`: one alone would
pay for it.
"""

from __future__ import annotations

import fnmatch
import importlib._bootstrap as bootstrap
import json
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache, cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import settings

import code_digest
import warm

LIMIT = 0.2
"""CPU seconds of a fast test, on the machine that the costs were recorded on."""
SMOKE = 2.0
"""CPU seconds at most of the one test that stays fast of a file whose tests all cost more."""
WORKERS, START = 2, 25.0
"""Processes that run tests side by side, and seconds until the first test of a session."""
WAITED = 0.1
"""What a second of a test, imports apart, counts at least in CPU seconds: processes that are killed leave no account."""
GROWN = 3.0
"""A fast test that costs this many times what it may, and does so again at once, has grown above its tier."""

TESTS = Path(__file__).resolve().parent
PACKAGE = TESTS.parent / "src" / "penstock"
COSTS, LEARNED, SKIPS = (TESTS / name for name in ("costs.json", "learned.json", "allowed_skips.txt"))
COVERS = {
    "fast": f"every test that costs at most {LIMIT} CPU s, and one of each other file",
    "slow": "what costs more: processes, browsers, clusters, small training runs, whole matrices",
    "learning": "recipes and algorithms that train until they reach a reward",
    "vllm": "the tests over a real vLLM",
}
CONTROL = ("core", "config", "algos", "models", "control", "stream", "loops", "train", "runtime")
LANGUAGE = (*CONTROL, "data", "rewards", "envs", "engine", "recipes")
"""What learning tests depend on: ``@pytest.mark.learning(*LANGUAGE)``."""
SELECTS = {"fast": "fast", "slow": "slow or (fast and hypothesis)", "learning": "learning", "vllm": "vllm"}

settings.register_profile("few", deadline=None, derandomize=True, max_examples=20)
settings.register_profile("many", deadline=None, derandomize=True, max_examples=100)


# ---- what a test costs


def proc(name: str) -> bytes:
    """A small file of ``/proc``, read with as little work as there is: it happens at each test's begin and end."""
    file = os.open(f"/proc/{name}", os.O_RDONLY)
    try:
        return os.read(file, 1 << 16)
    finally:
        os.close(file)


def ticks(process: str) -> int:
    """CPU time of a process and of its ended children, in clock ticks; 0 if it is gone."""
    try:
        return sum(map(int, proc(f"{process}/stat").rpartition(b")")[2].split()[11:15]))
    except OSError:
        return 0


def children(process: str) -> Iterator[str]:
    """The living processes below one."""
    try:
        threads = os.listdir(f"/proc/{process}/task")
        found = [proc(f"{process}/task/{thread}/children").decode().split() for thread in threads]
    except OSError:
        return
    for child in chain.from_iterable(found):
        yield child
        yield from children(child)


def cpu() -> float:
    """CPU seconds of this process, of its ended children and of the living ones."""
    times = os.times()
    own = time.process_time() + times.children_user + times.children_system
    forking = warm.HERE["server"]  # imports, as this process does
    living = (child for child in children(str(os.getpid())) if forking is None or child != str(forking.process.pid))
    return own + sum(map(ticks, living)) / os.sysconf("SC_CLK_TCK")


def unit() -> float:
    """CPU seconds of a fixed piece of work: how fast this machine is now."""

    def once() -> float:
        before, total = time.process_time(), 0
        for number in range(1_000_000):
            total += number
        return time.process_time() - before

    return min(once() for _ in range(5))


def name_of(fixture: Any) -> str:
    return f"{fixture.baseid}::{fixture.argname}"


def shared_by(item: Any) -> list[str]:
    """The names of what a test uses together with others, of its file or folder."""
    used = [definitions[-1] for definitions in item._fixtureinfo.name2fixturedefs.values()]
    return [name_of(fixture) for fixture in used if fixture.scope not in ("function", "session")]


class Meter:
    """CPU seconds of a test, without those of imports and of what several tests share."""

    def __init__(self) -> None:
        self.apart = 0.0
        self.inside = False
        self.shared: dict[str, float] = {}

    def of(self, run: Callable[[], Any]) -> tuple[float, Any]:
        before, self.apart = cpu(), 0.0
        value = run()
        return max(0.0, cpu() - before - self.apart), value

    def count_imports_apart(self) -> None:
        load = bootstrap._find_and_load

        def find_and_load(name: str, *arguments: Any) -> Any:
            if self.inside or name in sys.modules:
                return load(name, *arguments)
            self.inside, before = True, time.process_time()
            try:
                return load(name, *arguments)
            finally:
                self.inside = False
                self.apart += time.process_time() - before

        bootstrap._find_and_load = find_and_load

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Any:
        if fixturedef.scope == "function" or self.inside:
            return (yield)
        self.inside, before, began = True, cpu(), time.monotonic()
        try:
            return (yield)
        finally:
            self.inside = False
            spent = cpu() - before
            self.apart += spent
            if fixturedef.scope != "session":
                spent = max(spent, WAITED * (time.monotonic() - began))
                self.shared[name_of(fixturedef)] = max(spent, self.shared.get(name_of(fixturedef), 0.0))


# ---- the record


@cache
def record() -> dict[str, Any]:
    """``unit`` of the machine that measured; by file, how many tests are ``fast``, what each other test costs, and which of
    those stays fast; by tier, how many tests, their CPU seconds, and the seconds that two processes need for them."""
    return json.loads(COSTS.read_text(encoding="utf-8")) if COSTS.exists() else {"unit": unit(), "files": {}, "tiers": {}}


def above(file: str) -> dict[str, float]:
    """What the tests of a file that cost more than the limit cost, by the test's name."""
    return record()["files"].get(file, {}).get("above", {})


def tier_of(item: pytest.Item) -> str:
    for name in ("learning", "vllm"):
        if item.get_closest_marker(name):
            return name
    return "slow" if item.get_closest_marker("slow") or is_slow(item.nodeid, record()["files"]) else "fast"


def is_slow(test: str, files: dict[str, Any]) -> bool:
    """Whether a test costs more than the limit and is not the one of its file that stays fast."""
    file, _, name = test.partition("::")
    known = files.get(file, {})
    return name in known.get("above", {}) and name != known.get("smoke")


def may_cost(test: str) -> float:
    """CPU seconds above which a fast test has grown, on the machine of the record."""
    file, _, name = test.partition("::")
    return GROWN * max(LIMIT, above(file).get(name, 0.0))


def recorded(old: dict[str, Any], collected: Mapping[str, Collection[str]], costs: dict[str, float]) -> dict[str, Any]:
    """The record of a file's tests: what was measured now replaces what was, tests that are gone leave.

    ``collected``: by file, the tests it has; ``costs``: by test, CPU seconds.
    """
    files = dict(old)
    for file, tests in collected.items():
        was, now = old.get(file, {}), {test: costs[f"{file}::{test}"] for test in tests if f"{file}::{test}" in costs}
        if not now:
            continue
        higher = {test: cost for test, cost in was.get("above", {}).items() if test in tests and test not in now}
        higher |= {test: round(cost, 2) for test, cost in now.items() if cost > LIMIT}
        files[file] = {"fast": len(tests) - len(higher)}
        if higher:
            cheapest = min(higher, key=lambda test: (higher[test], test))
            smoke = {"smoke": cheapest} if len(higher) == len(tests) and higher[cheapest] <= SMOKE else {}
            files[file] |= smoke | {"above": dict(sorted(higher.items()))}
    return dict(sorted(files.items()))


# ---- learning tests


def depends_on(item: pytest.Item) -> str:
    """A digest of what a learning test runs."""
    marker = item.get_closest_marker("learning")
    assert marker is not None
    assert marker.args, f"{item.nodeid}: learning(…) needs the folders that it depends on"
    return code_digest.of_test(item.path, PACKAGE, marker.args)


def learned() -> dict[str, str]:
    return json.loads(LEARNED.read_text(encoding="utf-8")) if LEARNED.exists() else {}


# ---- skips


def allowed_skip(test: str, reason: str) -> bool:
    """Whether a line of the list (``test pattern | reason pattern | why``) names this skip."""
    lines = [line.split("|") for line in SKIPS.read_text(encoding="utf-8").splitlines() if line.strip() and line[0] != "#"]
    patterns = [(name.strip(), said.strip()) for name, said, *_ in lines]
    return any(fnmatch.fnmatchcase(test, name) and fnmatch.fnmatchcase(reason, said) for name, said in patterns)


# ---- pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tiers")
    group.addoption("--tier", choices=list(COVERS), help="the tests of a tier")
    group.addoption("--record-costs", action="store_true", help="write what the tests cost into tests/costs.json")
    group.addoption("--changed", action="store_true", help="of the learning tests, those whose code changed")
    group.addoption("--record-learned", action="store_true", help="write which learning tests passed into tests/learned.json")
    group.addoption("--strict-skips", action="store_true", help="a skip that tests/allowed_skips.txt does not name fails")


def pytest_configure(config: pytest.Config) -> None:
    """A property is tried on 20 examples, in the slow tier on 100; one that names a number of its own keeps it."""
    tier = config.option.tier
    if tier:
        config.option.markexpr = SELECTS[tier]
    settings.load_profile("many" if tier == "slow" else "few")
    config.pluginmanager.register(Tiers(config), "tiers")


class Tiers:
    """Marks the tests, measures them, and says at the end what has grown or was skipped. A worker's findings travel to the
    controller, which knows them all."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.meter = Meter()
        self.found: dict[str, Any] = {
            "costs": {},
            "walls": {},
            "waits": {},
            "grown": {},
            "shared": {},
            "uses": {},
            "collected": {},
            "digests": {},
        }
        self.passed: set[str] = set()
        self.failed: set[str] = set()
        self.skipped: list[tuple[str, str]] = []
        self.began = time.monotonic()
        config.pluginmanager.register(self.meter)
        self.meter.count_imports_apart()

    @cached_property
    def scale(self) -> float:
        """How much slower than the machine of the record this one is now."""
        return unit() / record()["unit"]

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        for item in items:
            tier = tier_of(item)
            if tier in ("fast", "slow"):
                item.add_marker(tier)
            file, _, name = item.nodeid.partition("::")
            self.found["collected"].setdefault(file, {})[name] = tier if tier in ("learning", "vllm") else ""
            if config.option.record_costs:
                self.found["uses"][item.nodeid] = shared_by(item)
            if tier == "learning" and (config.option.changed or config.option.record_learned):
                self.found["digests"][item.nodeid] = depends_on(item)
        if config.option.changed:
            last = learned()
            same = {test for test, now in self.found["digests"].items() if last.get(test) == now}
            config.hook.pytest_deselected(items=[item for item in items if item.nodeid in same])
            items[:] = [item for item in items if item.nodeid not in same]

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Any:
        began, before, self.meter.apart = time.monotonic(), cpu(), 0.0
        value = yield
        wall = self.found["walls"][item.nodeid] = time.monotonic() - began
        cost = max(0.0, cpu() - before - self.meter.apart)
        waits = self.found["waits"][item.nodeid] = WAITED * max(0.0, wall - self.meter.apart)
        if self.config.option.tier == "fast" and max(cost, waits) > may_cost(item.nodeid) * self.scale:
            began = time.monotonic()
            again, _ = self.meter.of(lambda: runtestprotocol(item, log=False, nextitem=nextitem))
            cost = max(min(cost, again), min(waits, WAITED * (time.monotonic() - began)))
            if cost > may_cost(item.nodeid) * self.scale:
                self.found["grown"][item.nodeid] = cost / self.scale
        self.found["costs"][item.nodeid] = cost
        return value

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if hasattr(report, "wasxfail"):  # a test that may fail is a test that is left out
            self.skipped.append((report.nodeid, f"xfail: {report.wasxfail}"))
        elif report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self.skipped.append((report.nodeid, reason.removeprefix("Skipped: ")))
        if report.passed and report.when == "call":
            self.passed.add(report.nodeid)
        if report.failed:
            self.failed.add(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped and isinstance(report.longrepr, tuple):
            self.skipped.append((report.nodeid, report.longrepr[2].removeprefix("Skipped: ")))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.found["shared"] |= self.meter.shared
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["tiers"] = json.dumps([self.found, unit()])
            return
        self.finish(session)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        found, _ = json.loads(getattr(node, "workeroutput", {}).get("tiers", "[{}, 0]"))
        for kind, values in found.items():
            for name, value in values.items():
                known = self.found[kind].get(name, 0.0)
                self.found[kind][name] = max(known, value) if kind == "shared" else value

    def finish(self, session: pytest.Session) -> None:
        if self.config.option.changed and session.exitstatus == 5:
            session.exitstatus = 0  # nothing that a learning test depends on has changed
        if self.found["grown"] and self.config.option.tier == "fast":
            session.exitstatus = 1
        if self.config.option.strict_skips and not all(allowed_skip(*skip) for skip in self.skipped):
            session.exitstatus = 1
        if self.config.option.record_costs and self.found["costs"]:
            self.write_costs()
        if self.config.option.record_learned and self.found["digests"]:
            passed = self.passed - self.failed
            now = {test: of_code for test, of_code in self.found["digests"].items() if test in passed}
            before = {test: of_code for test, of_code in learned().items() if test not in self.failed}
            LEARNED.write_text(json.dumps(dict(sorted((before | now).items())), indent=1) + "\n", encoding="utf-8")

    def write_costs(self) -> None:
        """Into the record, on the scale of its machine: a first record is made by this one."""
        old, scale = record(), self.scale
        costs = {
            test: max(cost, self.found["waits"][test]) / scale
            for test, cost in self.found["costs"].items()
            if test not in self.failed
        }
        if self.config.option.tier == "slow":  # which repeats properties of the fast one, with more examples
            costs = {test: cost for test, cost in costs.items() if is_slow(test, old["files"])}
        alone = dict(costs)
        for shared, spent in self.found["shared"].items():
            users = [test for test, used in self.found["uses"].items() if shared in used and test in costs]
            for test in users:
                share = spent / scale / len(users)
                costs[test] += share
                alone[test] += share if spent / scale <= SMOKE else spent / scale
        by_cost = {file: [name for name, own in tests.items() if not own] for file, tests in self.found["collected"].items()}
        files = recorded(old["files"], by_cost, alone)
        tiers = self.by_tier(files, costs, scale) if self.config.args_source.name != "ARGS" else {}
        if self.config.option.tier:  # tests that have become cheaper do not make up the other tier
            tiers = {tier: row for tier, row in tiers.items() if tier == self.config.option.tier}
        text = json.dumps({"unit": old["unit"], "tiers": old["tiers"] | tiers, "files": files}, indent=1)
        COSTS.write_text(text + "\n", encoding="utf-8")

    def by_tier(self, files: dict[str, Any], costs: dict[str, float], scale: float) -> dict[str, Any]:
        """How many tests each tier has, what they cost, and the seconds that two processes take from the start of pytest on."""
        found: dict[str, Any] = {}
        for test, cost in costs.items():
            file, _, name = test.partition("::")
            tier = self.found["collected"][file][name] or ("slow" if is_slow(test, files) else "fast")
            row = found.setdefault(tier, {"tests": 0, "cpu": 0.0, "wall": START})
            row["tests"] += 1
            row["cpu"] += cost
            row["wall"] += self.found["walls"][test] / scale / WORKERS
        return {tier: {name: round(value) for name, value in row.items()} for tier, row in sorted(found.items())}

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        write = terminalreporter.write_line
        for test, cost in sorted(self.found["grown"].items(), key=lambda pair: -pair[1]):
            write(f"grown: {test} costs {cost:.2f} CPU s, more than {may_cost(test):.2f}")
            write(f"  make it cheaper, or record it as slow: pytest --record-costs {test.split('::')[0]}")
        counts: dict[tuple[bool, str], int] = {}
        for test, reason in self.skipped:
            key = allowed_skip(test, reason), reason
            counts[key] = counts.get(key, 0) + 1
        for (allowed, reason), count in sorted(counts.items()):
            write(f"skipped {count}: {reason}{'' if allowed else ' (tests/allowed_skips.txt does not allow this)'}")
        cost, wall = sum(self.found["costs"].values()), time.monotonic() - self.began
        write(f"{len(self.found['costs'])} tests cost {cost:.0f} CPU s, imports and shared models apart, in {wall:.0f} s")


def summary(tier: str) -> str:
    """What a tier covers, and how long it takes here."""
    known = record()["tiers"].get(tier)
    if known is None:
        return f"{tier} tests: {COVERS[tier]}"
    wall = known["wall"] * unit() / record()["unit"]
    return f"{tier} tests: {COVERS[tier]}: {known['tests']:,} tests, about {wall // 60:.0f} min {wall % 60:.0f} s here"


if __name__ == "__main__":
    print(summary(sys.argv[1]))
