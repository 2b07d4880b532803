"""The public API: every name exists, and the blocking client has the same names."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import pytest

import client
from client import blocking

PAIRS = [
    (client.Producer, blocking.Producer),
    (client.PullConsumer, blocking.PullConsumer),
    (client.PushConsumer, blocking.PushConsumer),
    (client.Admin, blocking.Admin),
    (client.Instance, blocking.Instance),
]


def public(kind: type) -> dict[str, Any]:
    return {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_")}


def test_every_exported_name_can_be_imported():
    for name in client.__all__:
        assert getattr(client, name) is not None
    assert set(client.__all__) <= set(dir(client))


def test_an_unknown_attribute_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = client.Nonsense  # type: ignore[attr-defined] # what is tested


def test_importing_the_client_loads_nothing_heavy():
    code = (
        "import sys, client; print(sorted(m for m in sys.modules "
        "if m.split('.')[0] in {'asyncio', 'uvloop', 'msgspec', 'structlog', 'orjson'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("waiting", "other"), PAIRS, ids=lambda kind: kind.__name__)
def test_the_blocking_client_has_the_same_names(waiting: type, other: type):
    internal = {
        "name_servers",
        "remote",
        "routes",
        "heartbeat_soon",
        "connected",
        "connect",
        "doubt",
    }
    assert public(waiting).keys() - internal == public(other).keys()


def parameters(function: Any) -> list[tuple[str, Any, Any]]:
    return [
        (one.name, one.kind, one.default) for one in inspect.signature(function).parameters.values()
    ]


@pytest.mark.parametrize(("waiting", "other"), PAIRS, ids=lambda kind: kind.__name__)
def test_the_blocking_client_has_the_same_arguments_in_the_same_order(waiting: type, other: type):
    assert parameters(waiting.__init__) == parameters(other.__init__)
    for name, method in public(other).items():
        if callable(method):
            assert parameters(method) == parameters(getattr(waiting, name)), name


@pytest.mark.parametrize("kind", [kind for pair in PAIRS for kind in pair])
def test_everything_public_is_described(kind: type):
    for name, member in public(kind).items():
        assert inspect.getdoc(member), f"{kind.__name__}.{name}"
