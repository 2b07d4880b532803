"""The tables of header types are complete and every header in them works."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil

import pytest

from remoting.protocol import headers
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Header, wire_names_of
from remoting.protocol.errors import HeaderError
from remoting.protocol.headers.admin import (
    HandOverRequestHeader,
    PageRequestHeader,
    PromoteRequestHeader,
)
from tests.unit.remoting.protocol.header_tables import REQUEST_HEADERS, RESPONSE_HEADERS


def all_header_types() -> set[type[Header]]:
    found: set[type[Header]] = set()
    for info in pkgutil.iter_modules(headers.__path__):
        module = importlib.import_module(f"remoting.protocol.headers.{info.name}")
        found |= {
            value
            for name, value in vars(module).items()
            if isinstance(value, type) and issubclass(value, Header) and value is not Header
            if not name.startswith("_")
        }
    return found


HEADER_TYPES = sorted(all_header_types(), key=lambda header_type: header_type.__name__)


OWN = {HandOverRequestHeader, PageRequestHeader, PromoteRequestHeader}
"""Headers of PocketMQ's own requests."""


def test_the_catalogue_is_complete() -> None:
    assert len(HEADER_TYPES) == 79
    in_tables = {*REQUEST_HEADERS.values(), *RESPONSE_HEADERS.values()}
    assert in_tables | OWN == set(HEADER_TYPES)
    assert {*REQUEST_HEADERS, *RESPONSE_HEADERS} <= set(RequestCode)


@pytest.mark.parametrize("header_type", HEADER_TYPES)
def test_every_header_round_trips_with_all_its_fields(header_type: type[Header]) -> None:
    texts = {
        field.name: "true" if "bool" in str(field.type) else "7"
        for field in dataclasses.fields(header_type)  # type: ignore[arg-type]  # all are dataclasses
    }
    fields = dict(zip(wire_names_of(header_type), texts.values(), strict=True))
    full = header_type.from_fields(fields)
    assert dict(full.pairs()) == fields
    assert header_type.from_values(full.values()) == full
    assert header_type.__doc__


@pytest.mark.parametrize("header_type", HEADER_TYPES)
def test_every_required_field_is_missed(header_type: type[Header]) -> None:
    required = [
        name
        for name, field in zip(
            wire_names_of(header_type),
            dataclasses.fields(header_type),  # type: ignore[arg-type]  # all are dataclasses
            strict=True,
        )
        if field.default is dataclasses.MISSING
    ]
    if not required:
        assert header_type.from_fields({}) == header_type.from_values(())
        return
    with pytest.raises(HeaderError, match=f"the field {required[0]} is missing"):
        header_type.from_fields({})
    with pytest.raises(HeaderError, match=f"the field {required[0]} is missing"):
        header_type.from_values(())
