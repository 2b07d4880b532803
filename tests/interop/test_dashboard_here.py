"""Apache's dashboard gets from our broker what it gets from Apache's of the same version.

The dashboard is no library: ``Dashboard.java`` asks the administration client that the dashboard
uses for what its pages show, in the same order. ``docs/compatibility.md`` has a row for each.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from pocketmq import testing
from remoting.protocol.bodies import relaxed_json
from remoting.protocol.codes import RequestCode
from tests.interop.apache import VERSIONS, JavaClient, apache, compiled
from tests.support.tour import HOME

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(300)]

SETTINGS = {
    "brokerName": "broker-a",
    "brokerClusterName": "DefaultCluster",
}
ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC
"""Clients also ask for routes by themselves."""

LARGEST_COUNT = 16
"""Larger numbers are times, sizes and positions in files."""


class Answer(NamedTuple):
    """What a request of a page sent, and what it showed."""

    codes: set[int]
    shown: object


def answers(java: JavaClient, nameserver: str) -> dict[str, Answer]:
    return {
        request: Answer(
            {int(code) for code in codes.split(",") if code},
            shape(relaxed_json.loads(text.encode())),
        )
        for request, codes, text in java.run(nameserver, program="Dashboard")
    }


def shape(value: object) -> object:
    """Return what is to be the same: names, small numbers, and the kind of everything else."""
    match value:
        case {"error": _, "getResponseCode": code}:
            return {"code": code}
        case dict():
            return {re.sub("/.*", "", str(key)): shape(one) for key, one in value.items()}
        case list():
            return sorted(map(shape, value), key=repr)
        case bool() | None:
            return value
        case int() if value <= LARGEST_COUNT:
            return value
        case int() | float():
            return "number"
        case str() if re.fullmatch(r"-?\d+", value):
            return "digits"
        case str() if re.fullmatch(r"[%\w-]*", value) and not re.search(r"\d{3}", value):
            return value
    return "text"


def has(ours: object, theirs: object) -> bool:
    """Whether ours has all of theirs; it may have more names and more members of a list."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return all(key in ours and has(ours[key], one) for key, one in theirs.items())
    if isinstance(ours, list) and isinstance(theirs, list):
        return all(any(has(mine, one) for mine in ours) for one in theirs)
    return ours == theirs


class Row(NamedTuple):
    """What the docs say of a request."""

    codes: set[int]
    same: bool


def rows(version: str) -> dict[str, Row]:
    """Return the rows of the table in the docs that this version has."""
    column, other = VERSIONS.index(version), "(4.x)" if version >= "5" else "(5.x)"
    page = (HOME / "docs" / "compatibility.md").read_text()
    section = page.partition("## RocketMQ's dashboard\n")[2].partition("\n## ")[0]
    found = {}
    for line in section.splitlines():
        if line.startswith("| `"):
            request, _, codes, *cells = line.strip("| ").split(" | ")
            if cells[column] != "–":
                sent = {int(code.split()[0]) for code in codes.split(", ") if other not in code}
                found[request.strip("`")] = Row(sent, cells[column] == "same")
    return found


@pytest.mark.parametrize("version", VERSIONS)
async def test_its_pages_show_the_same_but_for_what_the_docs_name(
    version: str, tmp_path: Path
) -> None:
    java = JavaClient(version, "JSON", tmp_path)
    compiled(version)  # not by both at the same time
    # A broker of its own: what other tests did at a shared one shows in its figures.
    with testing.broker(settings=SETTINGS) as here, apache(version, tmp_path) as there:
        ours, theirs = await asyncio.gather(
            asyncio.to_thread(answers, java, here.nameserver),
            asyncio.to_thread(answers, java, there.nameserver),
        )

    documented = rows(version)
    assert ours.keys() == theirs.keys() == documented.keys()
    assert {name: one.codes | {ROUTE} for name, one in ours.items()} == {
        name: one.codes | {ROUTE} for name, one in documented.items()
    }
    different = {
        name: (one.shown, theirs[name].shown)
        for name, one in ours.items()
        if has(one.shown, theirs[name].shown) != documented[name].same
    }
    assert different == {}
