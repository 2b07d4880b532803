"""The typed headers of commands, one module per family of requests.

``REQUEST_HEADERS`` and ``RESPONSE_HEADERS`` name the header type of each request and of its
answer, by request code. They are made when first asked for: all headers together take a
noticeable part of a server's start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from remoting.protocol.headers.base import Header, Int, Long, header

if TYPE_CHECKING:
    from remoting.protocol.headers.tables import REQUEST_HEADERS, RESPONSE_HEADERS

__all__ = ["REQUEST_HEADERS", "RESPONSE_HEADERS", "Header", "Int", "Long", "header"]


def __getattr__(name: str) -> dict[int, type[Header]]:
    if name in {"REQUEST_HEADERS", "RESPONSE_HEADERS"}:
        from remoting.protocol.headers import tables  # noqa: PLC0415  # see the module's text

        tables_by_name: dict[str, dict[int, type[Header]]] = {
            "REQUEST_HEADERS": tables.REQUEST_HEADERS,
            "RESPONSE_HEADERS": tables.RESPONSE_HEADERS,
        }
        return tables_by_name[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
