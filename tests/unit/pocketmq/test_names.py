"""The package's own names: the client's, looked up when they are used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import client
import pocketmq


def test_the_clients_names_are_the_packages() -> None:
    assert pocketmq.Producer is client.Producer
    assert pocketmq.blocking is client.blocking
    assert set(client.__all__) < set(dir(pocketmq))


@pytest.mark.parametrize("name", ["_private", "nonsense", "Nonsense"])
def test_an_unknown_name_is_an_attribute_error(name: str) -> None:
    with pytest.raises(AttributeError, match=name):
        getattr(pocketmq, name)


def test_importing_the_package_imports_nothing_of_the_client() -> None:
    code = "import pocketmq, sys; print([m for m in sys.modules if m.startswith('client')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_an_applications_own_client_module_is_named_with_the_remedy(tmp_path: Path) -> None:
    own = tmp_path / "client.py"
    own.write_text("ANSWER = 42\n")
    done = subprocess.run(
        [sys.executable, "-c", "from pocketmq import Producer"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(Path(pocketmq.__file__).parent.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: 'import client' finds {own}")
    assert str(Path(client.__file__)) in last
    assert "python -P" in last
