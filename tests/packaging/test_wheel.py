"""The wheel, installed in a separate environment outside the repository."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.core import LACKING

HOME = Path(__file__).resolve().parents[2]
PACKAGES = {"remoting", "nameserver", "broker", "client", "spark_connector", "pocketmq"}
FOR_SPARK = {"pyspark_rocketmq.py", "pyspark_rocketmq_store.py"}
"""Modules that Spark discovers by name."""

BUILD_FILES = {"pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"}

WRONG = """\
import pocketmq
import pocketmq.blocking
from pocketmq import Nonsense  # error
from pocketmq.serde import json

pocketmq.Produzer  # error
pocketmq.Producer(group=7)  # error
pocketmq.blocking.Producer("127.0.0.1:9876").send(7, b"")  # error
json.dumps(1).lower().nonsense  # error
"""
"""Mistakes of an application that a type checker has to find."""

CORE = {
    path.relative_to(HOME)
    for package in ("remoting", "broker")
    for path in (HOME / package).rglob("*.pyx")
}

pytestmark = [pytest.mark.packaging, pytest.mark.timeout(600)]


class Environment:
    """A virtual environment with the wheel and what a lock file names, but for Spark.

    Spark is as large as all else together, and comes as sources that have to be built.
    """

    def __init__(self, home: Path, wheel: Path, lock: str, *, ready: bool = False) -> None:
        self.home = home
        self.python = home / "bin" / "python"
        if ready:
            return
        run([sys.executable, "-m", "venv", str(home)], home.parent)
        install = [str(self.python), "-m", "pip", "install", "--quiet"]
        install += ["--disable-pip-version-check", "--no-warn-script-location", "--no-compile"]
        pinned = home / lock
        text = (HOME / lock).read_text()
        pinned.write_text(re.sub(r"^pyspark==.*?(?=^\w)", "", text, flags=re.DOTALL | re.MULTILINE))
        run([*install, "--require-hashes", "--no-deps", "-r", str(pinned)], home.parent)
        run([*install, "--no-deps", str(wheel)], home.parent)

    def run(self, *arguments: str, cwd: Path, ok: bool = True) -> subprocess.CompletedProcess[str]:
        """Run this environment's Python."""
        return run([str(self.python), *arguments], cwd, ok=ok)

    def script(self, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run the ``pocketmq`` that the wheel installed."""
        return run([str(self.home / "bin" / "pocketmq"), *arguments], cwd)


def run(arguments: list[str], cwd: Path, *, ok: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a program isolated from this repository and this environment."""
    kept = {
        "PATH",
        "HOME",
        "CC",
        "POCKETMQ_REQUIRE_CORE",
        "LANG",
        "PIP_INDEX_URL",
        "PIP_CONFIG_FILE",
        "SSL_CERT_FILE",
    }
    environment = {name: value for name, value in os.environ.items() if name in kept}
    # Nothing is asked of the speed of the core: without optimization it compiles in less time.
    environment["POCKETMQ_CORE_FLAGS"] = "-O0 -fwrapv"
    done = subprocess.run(
        arguments, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert not ok or done.returncode == 0, done.stdout + done.stderr
    return done


@contextmanager
def made_once(name: str, factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a path that all test processes share, while no other of them makes what it names."""
    root = factory.getbasetemp()
    shared = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield shared / name


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheel and the source archive."""
    with made_once("dist", tmp_path_factory) as target:
        if not target.exists():
            made = tmp_path_factory.getbasetemp() / "dist-made"
            command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(made)]
            run([*command, str(HOME)], made.parent)
            made.rename(target)
    return target


@pytest.fixture(scope="session")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture(scope="session")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with all of the lock file, which no test changes."""
    with made_once("installed", tmp_path_factory) as home:
        complete = home / "complete"
        made = Environment(home, wheel, "requirements.lock", ready=complete.exists())
        complete.touch()
    return made


@pytest.fixture
def plain(wheel: Path, tmp_path: Path) -> Environment:
    """An environment with what ``pip install pocketmq`` installs, and nothing else."""
    return Environment(tmp_path / "venv", wheel, "requirements-runtime.lock")


def test_the_wheel_holds_the_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == PACKAGES | FOR_SPARK
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)
    assert not [name for name in names if "/test_" in name or "__pycache__" in name]
    compiled = {
        Path(name).parent / Path(name).name.partition(".")[0]
        for name in names
        if name.endswith(".so")
    }
    # A machine without a compiler builds a wheel without the core.
    assert compiled == (set() if LACKING else {source.with_suffix("") for source in CORE})
    assert not [name for name in names if name.endswith((".c", ".pyx", ".pxd"))]
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_source_archive_holds_no_tests(built: Path) -> None:
    (found,) = built.glob("*.tar.gz")
    with tarfile.open(found) as archive:
        names = archive.getnames()
    tops = {name.split("/")[1] for name in names if "/" in name}
    assert tops > PACKAGES
    assert {str(source) for source in CORE} <= {name.partition("/")[2] for name in names}
    assert not tops & {"tests", "benchmarks", "docs", ".venv"}


def clone(target: Path) -> Path:
    """Copy the files that a wheel is built of to a new directory."""
    for name in run(["git", "ls-files"], HOME).stdout.split():
        if name.partition("/")[0] in PACKAGES | FOR_SPARK | BUILD_FILES:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(HOME / name, target / name)
    return target


def build_without_a_compiler(target: Path, *, required: bool) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CC": "/nonexistent/cc", "POCKETMQ_REQUIRE_CORE": str(+required)}
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(target)]
    command.append(str(clone(target / "sources")))
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_without_a_compiler_it_is_installed_without_the_core(tmp_path: Path) -> None:
    done = build_without_a_compiler(tmp_path, required=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if name.endswith(".so")]


def test_a_build_that_requires_the_core_fails_without_a_compiler(tmp_path: Path) -> None:
    done = build_without_a_compiler(tmp_path, required=True)
    assert done.returncode != 0
    assert "/nonexistent/cc" in done.stdout + done.stderr
    assert "POCKETMQ_REQUIRE_CORE=1 asks for the compiled core" in done.stdout + done.stderr


def test_the_installed_packages_are_those_of_the_wheel(
    environment: Environment, tmp_path: Path
) -> None:
    code = "import client, pocketmq; print(client.__file__); print(pocketmq.Producer.__module__)"
    file, module = environment.run("-c", code, cwd=tmp_path).stdout.splitlines()
    assert Path(file).is_relative_to(environment.home)
    assert module == "client.producer.producer"


@pytest.mark.skipif(bool(LACKING), reason=LACKING)
def test_with_its_own_dependencies_alone_it_runs_on_the_core(
    plain: Environment, tmp_path: Path
) -> None:
    shutil.copy(Path(__file__).parent / "core_app.py", tmp_path)
    assert plain.run("core_app.py", cwd=tmp_path).stdout == "b'tea'\n"


def test_links_that_are_printed_lead_to_the_documentation_that_the_wheel_names(
    environment: Environment, tmp_path: Path
) -> None:
    code = (
        "from importlib.metadata import metadata; from client import NoQueues\n"
        "urls = dict(line.split(', ') for line in metadata('pocketmq').get_all('Project-URL'))\n"
        "print(urls['Documentation']); print(NoQueues.docs)\n"
    )
    documentation, link = environment.run("-c", code, cwd=tmp_path).stdout.splitlines()
    assert documentation.startswith("https://")
    assert link.startswith(f"{documentation}/consumer-groups.md#")


def test_the_clone_can_be_installed_as_the_readme_says(
    environment: Environment, tmp_path: Path
) -> None:
    # Without a network: what it needs is there.
    install = ["-m", "pip", "install", "--no-index", "--no-build-isolation", "--no-deps"]
    done = environment.run(*install, "--target", str(tmp_path / "site"), ".", cwd=clone(tmp_path))
    assert "Successfully installed pocketmq" in done.stdout


@pytest.mark.parametrize("extra", ["spark", "parquet", "otel", "demo", "all"])
def test_an_extra_of_the_readme_needs_what_the_lock_file_pins(
    wheel: Path, tmp_path: Path, extra: str
) -> None:
    # This environment has all that the lock file names.
    install = ["-m", "pip", "install", "--no-index", "--dry-run", f"{wheel}[{extra}]"]
    done = run([sys.executable, *install], tmp_path)
    assert "does not provide the extra" not in done.stderr
    assert "Would install" not in done.stdout.replace("Would install pocketmq", "")


def test_the_demo_runs(environment: Environment, tmp_path: Path) -> None:
    output = json.loads(environment.script("demo", "--json", cwd=tmp_path).stdout)
    assert output["checked"] is True
    assert output["messages"] == 502


def test_a_typed_application_passes_the_type_checker_and_runs(
    environment: Environment, tmp_path: Path
) -> None:
    text = (Path(__file__).parent / "app.py").read_text()
    (tmp_path / "app.py").write_text(text)
    (tmp_path / "same.py").write_text(re.sub(r"\bclient\b", "pocketmq", text))
    (tmp_path / "wrong.py").write_text(WRONG)
    checked = environment.run("-m", "mypy", "--strict", ".", cwd=tmp_path, ok=False)
    assert checked.stdout.count(": error: ") == WRONG.count("# error"), checked.stdout
    for number, line in enumerate(WRONG.splitlines(), 1):
        assert (f"wrong.py:{number}: error" in checked.stdout) == ("# error" in line)
    code = (
        "import runpy, sys; from pocketmq import testing\n"
        "with testing.broker() as server:\n"
        "    sys.argv = ['app.py', server.nameserver]\n"
        "    runpy.run_path('app.py', run_name='__main__')\n"
    )
    assert environment.run("-c", code, cwd=tmp_path).stdout == "[0, 1, 2, 7] 0\n"


def test_an_application_with_its_own_client_module_uses_both(
    environment: Environment, tmp_path: Path
) -> None:
    (tmp_path / "client.py").write_text("ANSWER = 42\n")
    (tmp_path / "main.py").write_text(
        "from pocketmq import FIRST, PushConsumer, blocking, testing\n"
        "import client\n"
        "with (\n"
        "    testing.broker() as server,\n"
        "    blocking.Producer(server.nameserver, group='shop') as producer,\n"
        "    blocking.PushConsumer(\n"
        "        server.nameserver, group='billing', subscribe={'orders': '*'}, start_from=FIRST\n"
        "    ) as consumer,\n"
        "):\n"
        "    producer.send('orders', b'tea')\n"
        "    print(next(iter(consumer)).body, client.ANSWER)\n"
    )
    assert environment.run("main.py", cwd=tmp_path).stdout == "b'tea' 42\n"


def test_servers_work_from_the_folder_of_such_an_application(
    environment: Environment, tmp_path: Path
) -> None:
    (tmp_path / "client.py").write_text("raise RuntimeError('not me')\n")
    (tmp_path / "broker.py").write_text("raise RuntimeError('nor me')\n")
    (tmp_path / "main.py").write_text(
        "from pocketmq import testing\n"
        "with testing.broker() as server:\n"
        "    print(server.nameserver)\n"
    )
    assert environment.run("main.py", cwd=tmp_path).stdout.startswith("127.0.0.1:")
    health = ["topic", "list", "--help"]
    assert "Example: " in environment.script(*health, cwd=tmp_path).stdout
    assert "Example: " in environment.run("-m", "pocketmq", *health, cwd=tmp_path).stdout


def test_the_pytest_plugin_is_installed(environment: Environment, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "from client import blocking\n"
        "def test_it(pocketmq_broker):\n"
        "    with blocking.Producer(pocketmq_broker.nameserver, group='g') as producer:\n"
        "        assert producer.send('orders', b'tea').offset == 0\n"
    )
    done = environment.run("-m", "pytest", "-q", "-p", "no:asyncio", cwd=tmp_path)
    assert "1 passed" in done.stdout
