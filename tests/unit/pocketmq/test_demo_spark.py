"""The demo with Spark says what it lacks before it starts anything."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest

from examples.demo import spark
from pocketmq.cli.demo import DemoFailed


def test_without_spark_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DemoFailed, match=r"pyspark, .* can't be found: pip install 'pocketmq\["):
        spark.run(10, tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_without_java_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(DemoFailed, match="Spark needs Java 17 or later"):
        spark.run(10, tmp_path / "page.html")
