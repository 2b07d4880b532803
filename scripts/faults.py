"""Plant faults in the product and count those that the unit tests find.

``python scripts/faults.py --revision main --seed 1 --count 60 > before.jsonl`` copies the revision
into a temporary folder, compiles its core, and plants one fault at a time in that copy: a flipped
comparison, an ``and`` for an ``or``, a number off by one, a dropped ``not``, a removed statement.
It then runs the unit tests of the file's folder, those that import the module first, and writes
a line of JSON for each fault. A test that fails or hangs finds the fault.

``--again before.jsonl`` plants the same faults in another revision, to compare two states of the
tests. A fault is the text of its line, so it applies although lines and files have moved; the
outcome is ``gone`` where the line is no longer there.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

HOME = Path(__file__).resolve().parents[1]
PACKAGES = ("remoting", "nameserver", "broker", "client", "spark_connector")
"""The packages that have unit tests for every module."""
HANG_SECONDS, LIMIT_SECONDS = 30, 150  # of one test, and of all tests of a fault

TESTS_OF = {
    "broker/storetools/verify": "tests/unit/broker/store/verify",
    "broker/storetools": "tests/unit/broker/store",
}
"""The folders whose tests are neither in the folder of the same name nor in one above it."""

OPPOSITES = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
OPPOSITES |= {"is": "is not", "is not": "is", "in": "not in", "not in": "in"}
OPPOSITES |= {"and": "or", "or": "and", "+": "-", "-": "+"}


@dataclass(frozen=True)
class Fault:
    """One change of one line."""

    path: str
    function: str
    kind: str
    before: str
    after: str


def faults_of(source: str, path: str) -> Iterator[Fault]:
    """Yield every fault that can be planted in a module, on lines that it has only once."""
    lines = source.splitlines()

    def visit(node: ast.AST, function: str) -> Iterator[Fault]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            function = f"{function}.{node.name}".lstrip(".")
        elif function and getattr(node, "lineno", 0) == getattr(node, "end_lineno", 1):
            line = lines[node.lineno - 1]  # type: ignore[attr-defined]
            if line.isascii() and lines.count(line) == 1:
                for kind, start, end, text in changes(node, line):
                    yield Fault(path, function, kind, line, line[:start] + text + line[end:])
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.arguments | ast.Import | ast.ImportFrom):
                yield from visit(child, function)

    yield from visit(ast.parse(source), "")


def changes(node: ast.AST, line: str) -> Iterator[tuple[str, int, int, str]]:
    """Yield the changes of a node: the kind, and which columns of its line get which text."""

    match node:
        case (
            ast.Compare(left=left, ops=[_], comparators=[right])
            | ast.BoolOp(values=[left, right, *_])
            | ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right)
        ):
            start, end = left.end_col_offset or 0, right.col_offset
            operator = line[start:end].strip(" ()")
            text = line[start:end].replace(operator, OPPOSITES[operator])
            yield type(node).__name__, start, end, text
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "Not", node.col_offset, operand.col_offset, ""
        case ast.Constant(value=bool() | int() as value, end_col_offset=int(end)):
            other = not value if isinstance(value, bool) else value + 1
            yield "Constant", node.col_offset, end, str(other)
        case ast.Expr(value=ast.Call() | ast.Await(), end_col_offset=int(end)):
            if not ast.unparse(node).startswith(("log.", "_log.", "self._log.", "super()")):
                yield "Removed", node.col_offset, end, "pass"
        case ast.AugAssign(end_col_offset=int(end)):
            yield "Removed", node.col_offset, end, "pass"


def modules(tree: Path) -> Iterator[str]:
    """Yield the product's modules."""
    for package in PACKAGES:
        yield from sorted(str(file.relative_to(tree)) for file in (tree / package).rglob("*.py"))


def sample(tree: Path, count: int, choice: random.Random) -> list[Fault]:
    """Choose faults: as many of each kind, in any order."""
    kinds = defaultdict(list)
    for path in modules(tree):
        for fault in faults_of((tree / path).read_text(), path):
            kinds[fault.kind].append(fault)
    each = -(-count // len(kinds))
    faults = [fault for kind in sorted(kinds) for fault in choice.sample(kinds[kind], each)]
    return choice.sample(faults, count)


def find(fault: Fault, tree: Path) -> str | None:
    """Return the path of the module that has a fault's line now, or None."""
    for path in (fault.path, *modules(tree)):
        text = (tree / path).read_text() if (tree / path).exists() else ""
        if fault.before in text and any(
            one.before == fault.before for one in faults_of(text, path)
        ):
            return path
    return None


def tests_of(path: str, tree: Path) -> list[str]:
    """Return the test files of a module's folder, those that import the module first."""
    folder = Path(path).parent
    while not (mirror := tree / TESTS_OF.get(str(folder), f"tests/unit/{folder}")).is_dir():
        folder = folder.parent
    dotted = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    package, _, name = dotted.rpartition(".")

    def distance(file: Path) -> tuple[int, str]:
        text = file.read_text()
        imports = f"from {dotted} import" in text or f"from {package} import {name}" in text
        return (0 if imports else 1 if name in file.stem else 2), str(file)

    files = sorted(mirror.rglob("test_*.py"), key=distance)
    return [str(file.relative_to(tree)) for file in files]


def run(fault: Fault, path: str, tree: Path) -> tuple[str, str]:
    """Plant a fault, run its tests, take it out, and return the outcome with the test's name."""
    file = tree / path
    original = file.read_text()

    def write(text: str) -> None:
        file.write_text(text)
        shutil.rmtree(file.parent / "__pycache__", ignore_errors=True)  # has whole seconds only

    write(original.replace(f"\n{fault.before}\n", f"\n{fault.after}\n"))
    options = ["-x", "-q", "-p", "no:cacheprovider", f"--timeout={HANG_SECONDS}"]
    try:
        with subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, *tests_of(path, tree)],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # so that the processes of a hanging test end, too
        ) as tests:
            try:
                output, _ = tests.communicate(timeout=LIMIT_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(tests.pid, signal.SIGKILL)
                return "not found in time", ""
    finally:
        write(original)
    failed = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return "found" if tests.returncode else "not found", "".join(failed[:1])[:150]


def main() -> None:
    """Plant the faults that the command line asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--revision", default="HEAD", help="the commit whose tests are tried")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--again", type=Path, help="the results whose faults are planted again")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="faults") as folder:
        tree = Path(folder)
        archive = subprocess.check_output(["git", "-C", str(HOME), "archive", asked.revision])
        subprocess.run(["tar", "-x"], cwd=tree, input=archive, check=True)
        build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        subprocess.run(build, cwd=tree, stdout=sys.stderr, check=True)
        if asked.again:
            rows = [json.loads(line) for line in asked.again.read_text().splitlines()]
            faults = [Fault(**dict(list(row.items())[:5])) for row in rows]
        else:
            faults = sample(tree, asked.count, random.Random(asked.seed))
        for fault in faults:
            path = find(fault, tree)
            outcome, test = run(fault, path, tree) if path else ("gone", "")
            result = {**asdict(fault), "outcome": outcome, "test": test}
            print(json.dumps(result), flush=True)  # noqa: T201 - the result


if __name__ == "__main__":
    main()
