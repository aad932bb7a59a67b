"""Does the test suite catch bugs? Plants one at a time, each a change of one line, and runs the tests that reach that line.

    python tools/plant_bugs.py choose --seed 31 --count 60 > tools/planted_bugs.json   # fixed before a change of the tests
    python tools/plant_bugs.py probe COPY          # in a copy of the checkout: note which tests reach which of the lines
    (cd COPY && make test test-slow)               # ... by running them; the notes are in COPY/reached/
    python tools/plant_bugs.py catch COPY --out caught.json     # in the copy: plant each bug, run the tests that reach it
    python tools/plant_bugs.py table before.json after.json     # Markdown, one row a bug

A bug is caught if a test fails with it and passes without it. The tests that reach the line run first, the cheapest first, up
to a limit of CPU seconds; where fewer than three tests are known to reach it, the fast tests of the folder of that name follow.
``catch --first caught.json`` starts with the tests that caught the bugs in an earlier run.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LIST = Path(__file__).with_name("planted_bugs.json")
COMPARISONS = {"Lt": ("<", "<="), "LtE": ("<=", "<"), "Gt": (">", ">="), "GtE": (">=", ">"), "Eq": ("==", "!=")}
COMPARISONS |= {"NotEq": ("!=", "=="), "Is": ("is", "is not"), "IsNot": ("is not", "is"), "In": ("in", "not in")}
ARITHMETIC = {"Add": ("+", "-"), "Sub": ("-", "+"), "Mult": ("*", "/"), "Div": ("/", "*"), "FloorDiv": ("//", "*")}
LOGIC = {"And": ("and", "or"), "Or": ("or", "and")}

PROBE = '''"""Notes which test reaches which planted bug (tools/plant_bugs.py probe)."""
import os
from pathlib import Path

_FOLDER = Path(__file__).resolve().parents[1] / "reached"
_seen = set()


def hit(bug):
    test = os.environ.get("PYTEST_CURRENT_TEST", "?")
    if (bug, test) not in _seen:
        _seen.add((bug, test))
        with open(_FOLDER / str(os.getpid()), "a", encoding="utf-8") as out:
            out.write(f"{bug} {test}\\n")
'''


def between(lines: list[str], left: ast.expr, right: ast.expr, old: str, new: str) -> tuple[int, str] | None:
    """The line of an operator between two operands, and the line with the other operator."""
    if left.end_lineno != right.lineno:
        return None
    line = lines[right.lineno - 1].encode()
    before, gap, after = line[: left.end_col_offset], line[left.end_col_offset : right.col_offset], line[right.col_offset :]
    text = gap.decode()
    if text.strip(" ()") != old:
        return None
    return right.lineno, (before + text.replace(old, new).encode() + after).decode()


def at(lines: list[str], node: ast.expr, new: str) -> tuple[int, str] | None:
    """The line of an expression, and the line with ``new`` in its place."""
    if node.lineno != node.end_lineno:
        return None
    line = lines[node.lineno - 1].encode()
    return node.lineno, (line[: node.col_offset] + new.encode() + line[node.end_col_offset :]).decode()


def changes(node: ast.AST, lines: list[str]) -> Iterator[tuple[int, str] | None]:
    """Every bug that can be planted at a node."""
    if isinstance(node, ast.Compare) and type(node.ops[0]).__name__ in COMPARISONS:
        yield between(lines, node.left, node.comparators[0], *COMPARISONS[type(node.ops[0]).__name__])
    elif isinstance(node, ast.BinOp) and type(node.op).__name__ in ARITHMETIC:
        texts = any(isinstance(part, ast.JoinedStr | ast.Constant) and not is_number(part) for part in (node.left, node.right))
        yield None if texts else between(lines, node.left, node.right, *ARITHMETIC[type(node.op).__name__])
    elif isinstance(node, ast.BoolOp):
        yield between(lines, node.values[0], node.values[1], *LOGIC[type(node.op).__name__])
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield at(lines, node, ast.unparse(node.operand))
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield at(lines, node, str(not node.value))
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield at(lines, node, str(node.value + 1))
    elif isinstance(node, ast.Name) and node.id in ("min", "max") and isinstance(node.ctx, ast.Load):
        yield at(lines, node, "min" if node.id == "max" else "max")
    elif isinstance(node, ast.Raise) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await)):
        yield (node.lineno, re.sub(r"\S.*", "pass", lines[node.lineno - 1])) if node.lineno == node.end_lineno else None


def is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def bugs_of(path: Path) -> list[dict[str, Any]]:
    """Every bug that can be planted in the functions of a file."""
    text = path.read_text(encoding="utf-8")
    lines, found = text.split("\n"), []
    for function in ast.walk(ast.parse(text)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for statement in function.body:
            for node in ast.walk(statement):
                for change in changes(node, lines):
                    if change and change[1] != lines[change[0] - 1]:
                        found.append({"path": path.relative_to(ROOT).as_posix(), "line": change[0],
                                      "old": lines[change[0] - 1], "new": change[1]})  # fmt: skip
    unique = {(bug["line"], bug["new"]): bug for bug in found}
    return [bug for bug in unique.values() if parses(lines, bug)]


def parses(lines: list[str], bug: dict[str, Any]) -> bool:
    try:
        ast.parse("\n".join([*lines[: bug["line"] - 1], bug["new"], *lines[bug["line"] :]]))
    except SyntaxError:
        return False
    return True


def choose(seed: int, count: int) -> list[dict[str, Any]]:
    """One bug in each folder of the package, the rest by folders' lengths."""
    package, dice = ROOT / "src" / "penstock", random.Random(seed)
    folders: dict[str, list[Path]] = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).parts
        folders.setdefault(parts[0] if len(parts) > 1 else "", []).append(path)
    sizes = {folder: sum(path.read_text().count("\n") for path in paths) for folder, paths in folders.items()}
    wanted = [*folders, *dice.choices(list(folders), [sizes[folder] for folder in folders], k=count - len(folders))]
    chosen: list[dict[str, Any]] = []
    for folder in sorted(wanted):
        pool = [bug for path in folders[folder] for bug in bugs_of(path)]
        taken = {(bug["path"], bug["line"]) for bug in chosen}
        chosen.append(dice.choice([bug for bug in pool if (bug["path"], bug["line"]) not in taken]))
    return [{"bug": number, **bug} for number, bug in enumerate(chosen, 1)]


def place(text: str, bug: dict[str, Any]) -> int:
    """The line of a bug, also where lines above it came or went; ``ValueError`` where its line is there no more."""
    lines = text.split("\n")
    same = [number for number, line in enumerate(lines, 1) if line == bug["old"]]
    if not same:
        raise ValueError(f"bug {bug['bug']}: {bug['path']} has no line {bug['old'].strip()!r} any more")
    return min(same, key=lambda number: abs(number - bug["line"]))


def first_line(tree: ast.Module, line: int) -> tuple[int, int]:
    """Where a statement can be put that runs before the line does: (line, column) of the statement around it."""
    best: ast.stmt | None = None
    elifs = {id(node.orelse[0]) for node in ast.walk(tree) if isinstance(node, ast.If) and len(node.orelse) == 1
             and isinstance(node.orelse[0], ast.If) and node.orelse[0].col_offset == node.col_offset}  # fmt: skip
    for node in ast.walk(tree):
        inside = isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno)
        if inside and id(node) not in elifs and (best is None or node.lineno >= best.lineno):
            best = node
    assert best is not None
    return best.lineno, best.col_offset


def probe(copy: Path, bugs: list[dict[str, Any]]) -> None:
    (copy / "reached").mkdir(exist_ok=True)
    (copy / "src" / "bug_probe.py").write_text(PROBE, encoding="utf-8")
    for path in sorted({bug["path"] for bug in bugs}):
        text = (copy / path).read_text(encoding="utf-8")
        tree, lines, probes = ast.parse(text), text.split("\n"), []
        for bug in bugs:
            if bug["path"] == path:
                probes.append((*first_line(tree, place(text, bug)), bug["bug"]))
        for line, column, number in sorted(probes, reverse=True):
            lines.insert(line - 1, " " * column + f"__import__('bug_probe').hit({number})")
        (copy / path).write_text("\n".join(lines), encoding="utf-8")


def reached(copy: Path) -> dict[int, list[str]]:
    """By bug, the tests that reach its line; a file's name where a fixture of several tests did."""
    found: dict[int, set[str]] = {}
    for notes in (copy / "reached").iterdir():
        for line in notes.read_text(encoding="utf-8").splitlines():
            number, _, test = line.partition(" ")
            name, _, phase = test.rpartition(" (")
            if name:
                found.setdefault(int(number), set()).add(name if phase.startswith("call") else name.split("::")[0])
    return {number: sorted(tests) for number, tests in found.items()}


def pytest_fails(copy: Path, tests: list[str], seconds: float) -> str | None:
    """The first test that fails, or None; one that hangs has failed."""
    python = str(copy / ".venv/bin/python")
    words = [python, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--timeout", "100", "-rfE", *tests]
    environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(words, cwd=copy, env=environment, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return f"{tests[0]} (or one after it): not over after {seconds:.0f} s"
    if done.returncode in (0, 5):
        return None
    if done.returncode == 4:
        raise RuntimeError(f"pytest did not run: {done.stderr}")
    named = re.findall(r"^(?:FAILED|ERROR) (\S+(?:\[.*?\])?)(?: - |$)", done.stdout, re.M)
    timed_out = re.findall(r"^(tests/\S+::\S+)", done.stdout + done.stderr, re.M)
    return (named or timed_out or [f"exit code {done.returncode}: {(done.stdout + done.stderr)[-300:]}"])[0]


def batches(tests: list[str], cost: dict[str, float], limit: float) -> Iterator[list[str]]:
    """The cheapest tests first: a few, then more, to the limit of CPU seconds in all."""
    ordered = sorted(tests, key=lambda test: cost.get(test, 0.2))
    total, size, start = 0.0, 5.0, 0
    for end, test in enumerate(ordered, 1):
        total += cost.get(test, 0.2)
        if total > size or end == len(ordered) or total > limit:
            yield ordered[start:end]
            start, size = end, size * 4
        if total > limit:
            return


def catch(
    copy: Path, bugs: list[dict[str, Any]], costs: dict[str, float], first: dict[str, Any], limit: float, out: Path
) -> None:
    """Plant each bug in the copy (without probes), run tests until one fails, and write what caught it."""
    reach: dict[str, list[str]] = json.loads((copy / "reached.json").read_text())
    results = json.loads(out.read_text()) if out.exists() else {}
    for bug in bugs:
        number = str(bug["bug"])
        if number in results:
            continue
        path = copy / bug["path"]
        sound = path.read_text(encoding="utf-8")
        try:
            line = place(sound, bug)
        except ValueError as gone:
            results[number] = {"caught": None, "why": str(gone)}
            continue
        lines = sound.split("\n")
        lines[line - 1] = bug["new"]
        mirrored = copy / "tests" / Path(bug["path"]).relative_to("src/penstock").parts[0]
        rounds = [[first[number]["caught"]]] if first.get(number, {}).get("caught") else []
        rounds += list(batches(reach.get(number, []), costs, limit))
        few = len(reach.get(number, [])) < 3 and mirrored.is_dir()
        rounds += [[str(mirrored.relative_to(copy)), "-m", "not slow"]] if few else []
        results[number] = {"caught": None, "reached_by": len(reach.get(number, []))}
        for tests in rounds:
            path.write_text("\n".join(lines), encoding="utf-8")
            try:
                failed = pytest_fails(copy, tests, 200 + 3 * limit)
            finally:
                path.write_text(sound, encoding="utf-8")
            named = [test for test in tests if failed and (test == failed or test.startswith(f"{failed.split('[')[0]}["))]
            if failed and not pytest_fails(copy, named or tests, 200 + 3 * limit):  # it passes without the bug
                results[number]["caught"] = failed
                break
        out.write_text(json.dumps(results, indent=1))
        print(number, bug["path"], bug["new"].strip()[:70], "->", results[number]["caught"], flush=True)


def table(bugs: list[dict[str, Any]], before: dict[str, Any], after: dict[str, Any]) -> str:
    def cell(results: dict[str, Any], bug: dict[str, Any]) -> str:
        caught = results.get(str(bug["bug"]), {}).get("caught")
        return f"`{caught.split('/')[-1]}`".replace("|", "\\|") if caught else "not caught"

    rows = ["| | file | line with the bug | before: caught by | after: caught by |", "| --- | --- | --- | --- | --- |"]
    for bug in bugs:
        shown = bug["new"].strip().replace("|", "\\|")
        rows.append(f"| {bug['bug']} | `{bug['path'][13:]}` | `{shown}` | {cell(before, bug)} | {cell(after, bug)} |")
    counts = [sum(bool(row.get("caught")) for row in results.values()) for results in (before, after)]
    return "\n".join([*rows, "", f"Caught: {counts[0]} of {len(bugs)} before, {counts[1]} after."])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    choosing = verbs.add_parser("choose")
    choosing.add_argument("--seed", type=int, default=31)
    choosing.add_argument("--count", type=int, default=60)
    verbs.add_parser("probe").add_argument("copy", type=Path)
    verbs.add_parser("reached").add_argument("copy", type=Path)
    catching = verbs.add_parser("catch")
    catching.add_argument("copy", type=Path)
    catching.add_argument("--out", type=Path, required=True)
    catching.add_argument("--first", type=Path, help="results of an earlier run")
    catching.add_argument("--costs", type=Path, help="CPU seconds by test (JSON)")
    catching.add_argument("--limit", type=float, default=200.0, help="CPU seconds of tests for one bug")
    catching.add_argument("--part", default="1/1", help="2/3: every third bug, from the second on")
    comparing = verbs.add_parser("table")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    given = parser.parse_args()
    if given.verb == "choose":
        print(json.dumps(choose(given.seed, given.count), indent=1))
        return
    bugs = json.loads(LIST.read_text(encoding="utf-8"))
    if given.verb == "probe":
        probe(given.copy.resolve(), bugs)
    elif given.verb == "reached":
        print(json.dumps(reached(given.copy.resolve()), indent=1))
    elif given.verb == "catch":
        part, parts = map(int, given.part.split("/"))
        costs = json.loads(given.costs.read_text()) if given.costs else {}
        first = json.loads(given.first.read_text()) if given.first else {}
        catch(given.copy.resolve(), bugs[part - 1 :: parts], costs, first, given.limit, given.out)
    else:
        print(table(bugs, *(json.loads(path.read_text()) for path in (given.before, given.after))))


if __name__ == "__main__":
    sys.exit(main())
