"""The public API is unchanged: names, signatures, commands, options and metrics.

``python -m tests.unit.pocketmq.test_public_api`` updates the snapshot. A change belongs in the
CHANGELOG, with its reason.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

import client
from client import blocking
from pocketmq.cli import root
from pocketmq.server import metrics_page

SNAPSHOT = Path(__file__).with_name("public_api.json")


def signature(thing: Any) -> str:
    """Parameters and defaults; annotations are left out, for they name internal types."""
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return ""
    parameters = []
    for one in found.parameters.values():
        default = "" if one.default is inspect.Parameter.empty else "=" + default_text(one.default)
        mark = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        kind = " (keyword)" if one.kind is one.KEYWORD_ONLY else ""
        parameters.append(f"{mark}{one.name}{default}{kind}")
    return ", ".join(parameters)


def default_text(value: object) -> str:
    text = repr(value)
    return text if " at 0x" not in text else type(value).__name__


def members(kind: type) -> Iterator[tuple[str, str]]:
    for name in dir(kind):
        if name.startswith("_") and name not in {"__init__", "__aenter__", "__enter__"}:
            continue
        thing = inspect.getattr_static(kind, name)
        if isinstance(thing, property):
            yield name, "property"
        elif callable(getattr(kind, name)) and not isinstance(getattr(kind, name), type):
            yield name, signature(getattr(kind, name))


def interface(module: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in sorted(module.__all__):
        thing = getattr(module, name)
        if isinstance(thing, type):
            found[name] = {"()": signature(thing)} | dict(members(thing))
        else:
            found[name] = signature(thing) if callable(thing) else type(thing).__name__
    return found


def commands(
    command: click.Command = root, path: str = "pocketmq"
) -> Iterator[tuple[str, list[str]]]:
    yield (
        path,
        sorted(
            " ".join((*one.opts, *one.secondary_opts))
            for one in command.params
            if one.name != "help"
        ),
    )
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands(found, f"{path} {name}")


def metric_names() -> list[str]:
    tables = [table for table in vars(metrics_page).values() if isinstance(table, tuple)]
    rows = [row for table in tables for row in table if isinstance(row, metrics_page.Metric)]
    return sorted(f"pocketmq_{row.name}" for row in rows)


def snapshot() -> dict[str, Any]:
    return {
        "client": interface(client),
        "client.blocking": interface(blocking),
        "commands": dict(commands()),
        "metrics": metric_names(),
    }


def test_the_public_api_is_unchanged() -> None:
    expected = json.loads(SNAPSHOT.read_text())
    found = json.loads(json.dumps(snapshot()))
    for part, entries in expected.items():
        assert found[part] == entries, f"{part} has changed: see this module's docstring"


if __name__ == "__main__":
    SNAPSHOT.write_text(json.dumps(snapshot(), indent=1, sort_keys=True) + "\n")
