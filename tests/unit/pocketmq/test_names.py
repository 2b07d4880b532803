"""The package's own names: those of the client, imported on first use."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import client
import pocketmq


def test_the_clients_names_are_the_packages() -> None:
    assert pocketmq.Producer is client.Producer
    assert set(client.__all__) < set(dir(pocketmq))
    assert set(client.__all__) == set(pocketmq.__all__)


@pytest.mark.parametrize("module", ["blocking", "serde"])
def test_the_clients_modules_can_be_imported_from_the_package(module: str) -> None:
    ours, clients = import_module(f"pocketmq.{module}"), import_module(f"client.{module}")
    public = {name for name, value in vars(clients).items() if defined_there(value, clients)}
    assert public - {"V", "S"} == set(ours.__all__)
    assert all(getattr(ours, name) is getattr(clients, name) for name in ours.__all__)


def defined_there(value: object, module: ModuleType) -> bool:
    home = getattr(value, "__module__", None) or type(value).__module__
    name = getattr(value, "__name__", "")
    return str(home).startswith(module.__name__) and not name.startswith("_")


def test_completion_offers_the_clients_names_before_one_was_used() -> None:
    code = "import pocketmq, rlcompleter as r; print(r.Completer().complete('pocketmq.PullC', 0))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("pocketmq.PullConsumer")


@pytest.mark.parametrize("name", ["_private", "nonsense", "Nonsense"])
def test_an_unknown_name_is_an_attribute_error(name: str) -> None:
    with pytest.raises(AttributeError, match=name):
        getattr(pocketmq, name)


def test_importing_the_package_imports_nothing_of_the_client() -> None:
    code = "import pocketmq, sys; print([m for m in sys.modules if m.startswith('client')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def run(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python as a user who has installed the packages and works in this directory."""
    return subprocess.run(
        [sys.executable, *words],
        cwd=directory,
        env={"PYTHONPATH": str(Path(pocketmq.__file__).parent.parent)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def application(tmp_path: Path) -> Path:
    """A directory with modules that have the names of PocketMQ's packages."""
    for name in ("client", "broker", "remoting", "nameserver"):
        (tmp_path / f"{name}.py").write_text(f"raise RuntimeError('the application: {name}')\n")
    return tmp_path


@pytest.mark.parametrize("name", ["client", "remoting"])
@pytest.mark.parametrize(
    "line",
    ["from pocketmq import Producer", "import pocketmq.blocking", "from pocketmq import serde"],
)
def test_an_applications_own_module_is_named_with_the_remedy_and_not_run(
    tmp_path: Path, name: str, line: str
) -> None:
    (tmp_path / f"{name}.py").write_text("raise RuntimeError('the application')\n")
    done = run(tmp_path, "-c", line)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: PocketMQ's package '{name}' is hidden by ")
    assert str(tmp_path / f"{name}.py") in last
    assert f"app/{name}.py" in last


def test_an_applications_own_module_that_is_in_use_stays_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "client.py").write_text("ANSWER = 42\n")
    code = (
        "import client, pocketmq\ntry: pocketmq.Producer\n"
        "except ImportError as error: print(error.name, client.ANSWER)\n"
    )
    assert run(tmp_path, "-c", code).stdout == "client 42\n"


@pytest.mark.parametrize("start", [["-m", "shop"], ["main.py"]])
def test_the_same_module_inside_a_package_of_the_application_does_no_harm(
    tmp_path: Path, start: list[str]
) -> None:
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "client.py").write_text("ANSWER = 42\n")
    (package / "__main__.py").write_text(
        "from pocketmq import Producer\nfrom shop import client\n"
        "print(Producer.__module__, client.ANSWER)\n"
    )
    (tmp_path / "main.py").write_text("import shop.__main__\n")
    assert run(tmp_path, *start).stdout == "client.producer.producer 42\n"


@pytest.mark.parametrize("name", ["broker", "nameserver", "spark_connector"])
def test_the_client_does_not_need_the_servers_packages(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text("raise RuntimeError('the application')\n")
    done = run(tmp_path, "-c", "from pocketmq import Producer, blocking; blocking.Producer")
    assert done.returncode == 0, done.stderr


def test_the_command_line_finds_its_own_packages_wherever_it_is_called(application: Path) -> None:
    for words in ([], ["topic"], ["broker"], ["store", "verify"], ["bench", "produce"]):
        done = run(application, "-m", "pocketmq", *words, "--help")
        assert done.returncode == 0, done.stderr
    done = run(application, "-m", "pocketmq", "health", "--nameserver", "127.0.0.1:1")
    assert (done.returncode, done.stdout.partition(":")[0]) == (1, "failed"), done.stderr
