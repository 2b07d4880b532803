"""The demo with Spark reports missing requirements before it starts anything."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from examples.demo import spark
from examples.demo.flights import DemoFailed


def test_without_spark_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in spark.NEEDED:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(DemoFailed, match=r"pyspark, .* can't be found: pip install 'pocketmq\["):
        spark.run(10, tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_without_java_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in spark.NEEDED:
        found = ModuleType(name)
        found.__spec__ = ModuleSpec(name, None)
        monkeypatch.setitem(sys.modules, name, found)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(DemoFailed, match="Spark needs Java 17 or later"):
        spark.run(10, tmp_path / "page.html")
