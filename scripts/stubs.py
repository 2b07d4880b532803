"""Write the type stubs of the client: ``python scripts/stubs.py [--check]``.

The classes of ``client.blocking`` are created at import time, and the names of ``client`` are
imported at their first use; type checkers support neither. ``--check`` exits 1 if a stub is out of
date.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import importlib
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Generic

HOME = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HOME))

import client  # noqa: E402
from client import blocking  # noqa: E402

NOTE = "# Written by scripts/stubs.py.\n"

SPECIAL = {
    "__init__": "__init__",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
}
"""Special methods of an asyncio class, and their blocking counterparts."""


class Blocking(ast.NodeTransformer):
    """Turns the methods of an asyncio class into declarations of their blocking counterparts."""

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self.visit_FunctionDef(ast.FunctionDef(**{**vars(node), "type_params": []}))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        docstring = ast.get_docstring(node, clean=False)
        declared = ast.Expr(ast.Constant(docstring if docstring is not None else ...))
        # A non-literal default would need another import.
        node.args.defaults = [_default(value) for value in node.args.defaults]
        node.args.kw_defaults = [value and _default(value) for value in node.args.kw_defaults]
        node.name = SPECIAL.get(node.name, node.name)
        node.body = [declared]
        self.generic_visit(node.args)
        if node.returns is not None:
            node.returns = self.visit(node.returns)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        return ast.Name("Future") if ast.unparse(node) == "asyncio.Future" else node


def _default(value: ast.expr) -> ast.expr:
    return value if isinstance(value, ast.Constant | ast.Tuple) else ast.Constant(...)


def public_methods(kind: type) -> Iterator[ast.stmt]:
    """Return the public methods of a class and its bases, as source."""
    seen: set[str] = set()
    for base in kind.__mro__:
        if base.__module__.split(".")[0] != "client":
            continue
        tree = ast.parse(inspect.getsource(base))
        assert isinstance(tree.body[0], ast.ClassDef)
        methods = [
            node
            for node in tree.body[0].body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and (node.name in SPECIAL or node.name[0] != "_")
            and node.name not in seen
        ]
        seen |= {node.name for node in methods}
        yield from methods


def without_implementations(methods: list[ast.FunctionDef]) -> Iterator[ast.FunctionDef]:
    """Drop the implementations of overloads, and move their docstring to the first overload."""
    overloaded: dict[str, ast.FunctionDef] = {}
    for node in methods:
        if any(ast.unparse(decorator) == "overload" for decorator in node.decorator_list):
            overloaded.setdefault(node.name, node)
            yield node
        elif node.name in overloaded:
            overloaded[node.name].body = node.body
        else:
            yield node


def declaration(twin: type) -> ast.ClassDef:
    """Return a blocking class with all public methods of the asyncio class."""
    kind = getattr(client, twin.__name__)
    generic = ast.parse("Generic[T]", mode="eval").body
    methods = [Blocking().visit(node) for node in public_methods(kind)]
    body = [ast.Expr(ast.Constant(twin.__doc__)), *without_implementations(methods)]
    bases = [generic] if issubclass(kind, Generic) else []  # type: ignore[arg-type] # it is a class
    return ast.ClassDef(twin.__name__, bases, [], body, [], type_params=[])


def imports_for(names: set[str], modules: list[str]) -> list[str]:
    """Return import statements for names, as these modules import or define them."""
    found: dict[str, str] = {"Future": "from concurrent.futures import Future"}
    for module in modules:
        tree = ast.parse(Path(inspect.getfile(importlib.import_module(module))).read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    found.setdefault(alias.name, f"from {node.module} import {alias.name}")
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, f"from {module} import {node.name}")
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                if isinstance(target, ast.Name):
                    found.setdefault(target.id, f"from {module} import {target.id}")
    return [found[name] for name in sorted(names)]


def blocking_stub() -> str:
    """Return the stub of ``client.blocking``."""
    twins = [getattr(blocking, name) for name in blocking.__all__]
    classes = [declaration(twin) for twin in twins]
    used = {node.id for tree in classes for node in ast.walk(tree) if isinstance(node, ast.Name)}
    used -= {*dir(builtins), *blocking.__all__, "T", "V"}
    kinds = [getattr(client, twin.__name__) for twin in twins]
    modules = dict.fromkeys(
        base.__module__
        for kind in kinds
        for base in kind.__mro__
        if base.__module__.startswith("client")
    )
    lines = [
        *imports_for(used | {"TypeVar"}, list(modules)),
        'T = TypeVar("T")\nV = TypeVar("V")',
        *(ast.unparse(ast.fix_missing_locations(tree)) for tree in classes),
    ]
    return NOTE + "\n".join(lines) + "\n"


def client_stub() -> str:
    """Return the stub of ``client``."""
    lines = [
        *(f"from client import {name} as {name}" for name in client.SUBMODULES),
        *(
            f"from {module} import {name} as {name}"
            for module, names in client.MODULES.items()
            for name in names.split()
        ),
        f"__all__ = {client.__all__!r}",
    ]
    return NOTE + "\n".join(lines) + "\n"


def formatted(text: str, path: Path) -> str:
    """Return a stub formatted by ruff."""
    ruff = [sys.executable, "-m", "ruff"]
    for command in (["check", "--fix", "--quiet", "--select", "I,RUF022"], ["format", "--quiet"]):
        text = subprocess.run(
            [*ruff, *command, "--stdin-filename", str(path), "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
            cwd=HOME,
        ).stdout
    return text


def main() -> int:
    """Write the stubs, or compare them and return 1 if one is not up to date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing, exit 1 if a stub is out of date"
    )
    check = parser.parse_args().check
    stubs = {
        HOME / "client" / "blocking" / "__init__.pyi": blocking_stub(),
        HOME / "client" / "__init__.pyi": client_stub(),
    }
    old = 0
    for path, raw in stubs.items():
        text = formatted(raw, path)
        if path.exists() and path.read_text() == text:
            continue
        old += 1
        if check:
            sys.stdout.write(
                f"{path.relative_to(HOME)} is out of date: run python scripts/stubs.py\n"
            )
        else:
            path.write_text(text)
    return 1 if check and old else 0


if __name__ == "__main__":
    sys.exit(main())
