"""Which core runs, and why the compiled one is not used, whatever is wrong with it."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from types import ModuleType

import pytest

from broker import fast_path
from remoting.protocol import core

SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty package that can be imported under its directory's name."""
    monkeypatch.delenv("POCKETMQ_PURE", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    home = tmp_path / f"package_{tmp_path.name}"
    home.mkdir()
    (home / "__init__.py").touch()
    return home


@pytest.mark.parametrize(
    ("package", "modules"), [(core, core.MODULES), (fast_path, fast_path.MODULES)]
)
def test_every_compiled_module_is_required(package: ModuleType, modules: tuple[str, ...]) -> None:
    sources = Path(package.__path__[0]).glob("*.pyx")
    assert {source.stem for source in sources} == set(modules)


def test_existing_modules_are_used(package: Path) -> None:
    for name in ("one", "two"):
        (package / f"{name}.py").touch()
    assert core.why_not(package.name, ("one", "two")) == ""


def test_modules_that_were_not_built(package: Path) -> None:
    why = core.why_not(package.name, ("one", "two"))
    assert why == "the compiled modules were not built, for want of a C compiler or Python.h"


def test_modules_of_another_python_are_not_seen(package: Path) -> None:
    (package / "one.cpython-39-x86_64-linux-gnu.so").write_bytes(b"\x7fELF")
    assert "were not built" in core.why_not(package.name, ("one",))


def test_a_half_installed_core(package: Path) -> None:
    (package / "one.py").touch()
    why = core.why_not(package.name, ("one", "two", "three"))
    assert why == "of the compiled modules two, three are missing: install PocketMQ anew"


def test_a_module_that_cannot_be_loaded(package: Path) -> None:
    (package / f"one{SUFFIX}").write_bytes(b"\x7fELF, cut off")
    why = core.why_not(package.name, ("one",))
    assert why.startswith("the compiled modules can't be loaded, install PocketMQ anew: ")
    assert "\n" not in why


@pytest.mark.parametrize(("value", "forced"), [("1", True), ("0", False), ("", False)])
def test_python_is_forced_by_the_environment(
    package: Path, monkeypatch: pytest.MonkeyPatch, value: str, forced: bool
) -> None:
    (package / "one.py").touch()
    monkeypatch.setenv("POCKETMQ_PURE", value)
    assert bool(core.why_not(package.name, ("one",))) is forced


def test_a_python_without_the_gil_uses_the_python_code(package: Path) -> None:
    (package / "one.py").touch()
    why = core.why_not(package.name, ("one",), has_gil=False)
    assert why == "the compiled modules need a Python with the GIL, and this build is free-threaded"
