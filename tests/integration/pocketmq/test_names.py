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


@pytest.mark.parametrize(
    "line",
    [
        "from pocketmq import Producer",
        "import pocketmq.blocking",
        "from pocketmq import serde",
        "from pocketmq import testing",
    ],
)
def test_an_applications_own_modules_hide_nothing_and_are_not_run(
    application: Path, line: str
) -> None:
    done = run(application, "-c", line)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["client", "remoting"])
@pytest.mark.parametrize(
    "imports",
    [
        "import {name}, pocketmq; pocketmq.Producer",
        "import pocketmq; pocketmq.Producer; import {name}",
        "import pocketmq, {name}; from pocketmq.blocking import Producer",
    ],
)
def test_application_and_client_import_each_their_own_module(
    tmp_path: Path, name: str, imports: str
) -> None:
    (tmp_path / f"{name}.py").write_text("ANSWER = 42\n")
    code = (
        f"{imports.format(name=name)}\n"
        f"import {name} as own, pocketmq\n"
        "names = [getattr(pocketmq, name) for name in pocketmq.__all__]\n"
        "with pocketmq.blocking.Producer('127.0.0.1:1', group='g') as producer:\n"
        "    try: producer.send('orders', b'tea', timeout=0.1)\n"
        "    except pocketmq.NoNameServer: print(own.ANSWER)\n"
    )
    done = run(tmp_path, "-c", code)
    assert (done.stdout, done.stderr) == ("42\n", "")


def test_a_script_that_is_named_like_the_client_can_use_it(tmp_path: Path) -> None:
    (tmp_path / "client.py").write_text(
        "from pocketmq import Producer, blocking\nprint(Producer.__module__, __name__)\n"
    )
    (tmp_path / "main.py").write_text("import client\n")
    assert run(tmp_path, "client.py").stdout == "client.producer.producer __main__\n"
    assert run(tmp_path, "main.py").stdout == "client.producer.producer client\n"


def test_a_package_that_hides_the_client_is_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "client").mkdir()
    file = tmp_path / "client" / "__init__.py"
    file.write_text("raise RuntimeError('the application')\n")
    last = run(tmp_path, "-c", "from pocketmq import Producer").stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: PocketMQ's package 'client' is hidden by {file}: ")
    assert "app/client" in last


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
