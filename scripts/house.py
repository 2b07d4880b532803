"""Measure the size and shape of the code base: ``python scripts/house.py [--check] [--list NAME]``.

Count what makes a code base hard to learn: files, code lines, classes, functions, import cycles,
small private functions with one use, long functions, class names used twice, loose files at a
package's root, private names of other modules, and the private names that tests use.
``--check`` exits 1 when a permanent rule is broken; ``--list`` shows the findings behind a number.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

HOME = Path(__file__).resolve().parents[1]
PACKAGES = ("remoting", "nameserver", "broker", "client", "spark_connector", "pocketmq")
COMPILED = (".pyx", ".pxd")

LONGEST = 40
SMALL = 8
MOST_LINES = 70
"""Largest length of a function, without its docstring (TigerStyle's limit)."""
MOST_LOOSE = 12
"""Largest number of modules at a package's root, without ``__init__`` and ``__main__``."""
CIRCLE = 3
"""Largest number of files that may import each other in a cycle."""

MOST = {"files": 443, "code lines": 68_518, "classes": 1_074, "functions": 5_537}
"""What the product may have; a new feature makes room for itself."""

LASTING = {
    *("circles", "names used twice", "private names of other modules"),
    *("long functions", "loose files", "too many"),
}
"""The lists that ``--check`` requires to be empty: the permanent rules."""

NOT_PRIVATE = ("_asdict", "_fields", "_make", "_replace", "_getframe", "_current_frames")
"""Names of the standard library that are public despite their underscores."""

_SKIPPED = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}


@dataclass
class House:
    """The counts, by package; ``found`` has a line per finding, by rule."""

    counts: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    found: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))


def sources() -> list[Path]:
    """Return the product's files, including compiled sources, without stubs."""
    return sorted(
        path
        for package in PACKAGES
        for path in (HOME / package).rglob("*")
        if path.suffix in {".py", *COMPILED}
    )


def code_lines(text: str) -> int:
    """Return the number of lines with tokens that are neither comments nor docstrings."""
    lines: set[int] = set()
    statement_begins = True
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in _SKIPPED:
            statement_begins = statement_begins or token.type == tokenize.NEWLINE
            continue
        if not (token.type == tokenize.STRING and statement_begins):
            lines.update(range(token.start[0], token.end[0] + 1))
        statement_begins = False
    return len(lines)


def module_of(path: Path) -> str:
    """Return a file's name in an import statement."""
    parts = path.relative_to(HOME).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(module: str, tree: ast.AST, modules: set[str], *, package: bool) -> set[str]:
    """Return the product's modules that a module imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = module.split(".")
            if node.level:
                cut = len(parents) - node.level + package
                base = ".".join([*parents[:cut], *([node.module] if node.module else [])])
            else:
                base = node.module or ""
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                found.add(inner if inner in modules else base)
    return (found & modules) - {module}


def circles(graph: dict[str, set[str]]) -> Iterator[list[str]]:
    """Yield the strongly connected components (Tarjan 1972) of more than one module."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []

    def visit(module: str) -> Iterator[list[str]]:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in sorted(graph[module]):
            if other not in index:
                yield from visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], index[other])
        if low[module] == index[module]:
            at = stack.index(module)
            members = stack[at:]
            del stack[at:]
            if len(members) > 1:
                yield members

    for module in sorted(graph):
        if module not in index:
            yield from visit(module)


def body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of lines of a function's body, without its docstring."""
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def look_at_python(house: House, trees: dict[Path, ast.Module], texts: dict[Path, str]) -> None:
    """Count classes, functions and their names."""
    uses = Counter[str]()
    small: list[tuple[str, str]] = []
    long: list[tuple[int, str, bool]] = []
    names = defaultdict[str, list[str]](list)
    for path, tree in trees.items():
        lines = texts[path].splitlines()
        where = path.relative_to(HOME)
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                uses[node.id] += 1
            elif isinstance(node, ast.Attribute):
                uses[node.attr] += 1
            elif isinstance(node, ast.ClassDef):
                house.counts[where.parts[0]]["classes"] += 1
                # A blocking twin has the name of its original.
                if where.parts[:2] != ("client", "blocking"):
                    names[node.name].append(f"{where}:{node.lineno}")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                house.counts[where.parts[0]]["functions"] += 1
                length = body_lines(node)
                if length > MOST_LINES:
                    house.found["long functions"].append(
                        f"{where}:{node.lineno} {node.name}: {length} lines, not {MOST_LINES}"
                    )
                inside = lines[node.lineno - 1 : node.end_lineno]
                explained = any(re.search(r"(^|\s)# (?!noqa|type:)", line) for line in inside)
                long.append((length, f"{where}:{node.lineno} {node.name}", explained))
                if re.match("_[^_]", node.name) and length <= SMALL:
                    small.append((node.name, f"{where}:{node.lineno} {node.name}"))
    house.found["small private functions used once"] = [
        text for name, text in small if uses[name] == 1
    ]
    house.found[f"uncommented among the {LONGEST} longest functions"] = [
        f"{text}: {length} lines"
        for length, text, explained in sorted(long, reverse=True)[:LONGEST]
        if not explained
    ]
    house.found["names used twice"] = [
        f"{name}: {', '.join(places)}"
        for name, places in sorted(names.items())
        if len(places) > 1 and not name.startswith("_")
    ]


def private_names(tree: ast.Module, modules: set[str]) -> Iterator[tuple[int, str]]:
    """Yield uses of private names of other modules of the product: line and name.

    A private name that the file defines or uses on ``self`` is not one of another module.
    """
    own = set(NOT_PRIVATE)
    attributes: list[ast.Attribute] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            own.add(node.name)
        elif isinstance(node, ast.Name):
            own.add(node.id)
        elif isinstance(node, ast.Attribute) and re.match("_[a-z]", node.attr):
            if isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}:
                own.add(node.attr)
            else:
                attributes.append(node)
        elif isinstance(node, ast.ImportFrom) and node.module in modules:
            for alias in node.names:
                if re.match("_[a-z]", alias.name):
                    yield node.lineno, f"import of {alias.name}"
    for node in attributes:
        if node.attr not in own:
            yield node.lineno, ast.unparse(node)


def look_at_tests(house: House) -> None:
    """Find monkeypatches of the product and uses of private names in tests."""
    for path in sorted((HOME / "tests").rglob("*.py")):
        where = path.relative_to(HOME)
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Attribute):
                continue
            place = f"{where}:{node.lineno} {ast.unparse(node)}"
            owner = node.value
            if node.attr == "setattr" and isinstance(owner, ast.Name) and owner.id == "monkeypatch":
                house.found["monkeypatch.setattr in tests"].append(place)
            elif re.match("_[a-z]", node.attr) and not (
                isinstance(owner, ast.Name) and owner.id in {"self", "cls"}
            ):
                house.found["private names used by tests"].append(place)


def survey() -> House:
    """Collect all counts and findings."""
    house = House()
    paths = sources()
    texts = {path: path.read_text() for path in paths}
    trees = {path: ast.parse(text) for path, text in texts.items() if path.suffix == ".py"}
    for path, text in texts.items():
        counts = house.counts[path.relative_to(HOME).parts[0]]
        counts.update({"files": 1, "code lines": code_lines(text)})
    modules = {module_of(path) for path in paths}
    graph = {
        module_of(path): imports(module_of(path), tree, modules, package=path.name == "__init__.py")
        for path, tree in trees.items()
    }
    graph |= {module: set() for module in modules - graph.keys()}
    house.found["circles"] = [
        f"{len(members)}: {' '.join(members)}"
        for members in circles(graph)
        if len(members) > CIRCLE
    ]
    look_at_python(house, trees, texts)
    house.found["private names of other modules"] = [
        f"{path.relative_to(HOME)}:{line} {used}"
        for path, tree in trees.items()
        for line, used in private_names(tree, modules)
    ]
    for package in PACKAGES:
        loose = len(list((HOME / package).glob("[!_]*.py")))
        if loose > MOST_LOOSE:
            house.found["loose files"].append(f"{package}: {loose} files, not {MOST_LOOSE}")
    total = sum(house.counts.values(), Counter[str]())
    house.found["too many"] = [
        f"{name}: {total[name]}, not {most}" for name, most in MOST.items() if total[name] > most
    ]
    look_at_tests(house)
    return house


def main() -> int:
    """Print the numbers; with ``--check`` return 1 if a permanent rule is broken."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="exit 1 if a rule is broken")
    parser.add_argument("--list", metavar="NAME", help="print the findings of a rule")
    options = parser.parse_args()
    house = survey()
    out = sys.stdout
    if options.list:
        out.writelines(f"{line}\n" for line in house.found[options.list])
        return 0
    if options.check:
        broken = {name: house.found[name] for name in sorted(LASTING) if house.found[name]}
        for name, findings in broken.items():
            out.writelines(f"{name}: {line}\n" for line in findings)
        return 1 if broken else 0
    rows = {**house.counts, "product": sum(house.counts.values(), Counter[str]())}
    out.write(f"{'':16}{''.join(f'{name:>12}' for name in MOST)}\n")
    for package, counts in rows.items():
        out.write(f"{package:16}{''.join(f'{counts[name]:12,}' for name in MOST)}\n")
    out.writelines(f"{name}: {len(findings)}\n" for name, findings in house.found.items())
    return 0


if __name__ == "__main__":
    sys.exit(main())
