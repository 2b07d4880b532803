"""Helpers of the pipeline tests."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from client import ReceivedMessage
from tests.support.tour import HOME

Received = Callable[[str, int], list[ReceivedMessage[bytes]]]


def example(name: str) -> ModuleType:
    """One of ``examples/spark`` as a module."""
    path = HOME / "examples" / "spark" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"example_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def loaded(messages: Iterable[ReceivedMessage[bytes]]) -> list[Any]:
    """Return the bodies, parsed as JSON."""
    return [json.loads(message.body) for message in messages]
