"""One request or answer: what all three header codecs read and write."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Self, TypeVar

from remoting.protocol.codes import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    VERSION,
    Language,
    ResponseCode,
    SerializeType,
)
from remoting.protocol.headers.base import Header

H = TypeVar("H", bound=Header)

UNKNOWN: Final = -1
"""Of a position: nobody has said."""

Extra = Mapping[str, str] | Iterable[tuple[str, str]]
"""Ext fields besides the typed header's."""


@dataclass(slots=True)
class Command:
    """A frame's meaning (cf. RemotingCommand).

    A command we build has a typed ``header``; one that came in has ``pairs`` or, from a msgpack
    frame, ``values``, and ``read`` makes the typed header of either.
    """

    code: int
    """The request's code in a request, the response's in an answer."""

    opaque: int = 0
    """Correlates an answer with its request, per connection."""

    flag: int = 0
    """``FLAG_RESPONSE`` and ``FLAG_ONEWAY``."""

    language: Language | None = Language.PYTHON
    """The sender's; ``None`` when we don't know it."""

    version: int = VERSION
    """The sender's release (see ``versions``)."""

    remark: str | None = None
    """An error's text, mostly."""

    header: Header | None = None
    """The typed header of a command we build."""

    pairs: tuple[tuple[str, str], ...] | None = None
    """Ext fields in wire order, repeats kept; on a command we build, those after the header's.
    ``None`` when there is no such part, which differs from an empty one in JSON."""

    values: tuple[object, ...] | None = None
    """The declared header fields of a msgpack frame, by position."""

    body: bytes | memoryview = b""
    """Empty means none. A command that came in refers to the buffer it was decoded from."""

    serialize: SerializeType = SerializeType.JSON
    """The codec of the frame it came in or goes out in."""

    body_at: int = field(default=UNKNOWN, compare=False, repr=False)
    """Where the body of a command that came in begins in what it is a view of."""

    @classmethod
    def request(
        cls,
        code: int,
        header: Header | None = None,
        *,
        body: bytes | memoryview = b"",
        extra: Extra = (),
        oneway: bool = False,
    ) -> Self:
        """A request of ours. The connection that sends it fills in opaque and codec."""
        return cls(
            code,
            header=header,
            flag=FLAG_ONEWAY if oneway else 0,
            pairs=_extra_pairs(extra),
            body=body,
        )

    def reply(
        self,
        code: int = ResponseCode.SUCCESS,
        remark: str | None = None,
        *,
        header: Header | None = None,
        body: bytes | memoryview = b"",
        extra: Extra = (),
    ) -> Command:
        """The answer to this request: same opaque and codec, language JAVA as every broker's."""
        return Command(
            code,
            self.opaque,
            FLAG_RESPONSE,
            Language.JAVA,
            VERSION,
            remark,
            header,
            _extra_pairs(extra),
            None,
            body,
            self.serialize,
        )

    @property
    def is_response(self) -> bool:
        """Whether this answers a request."""
        return self.flag & FLAG_RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        """Whether the sender wants no answer."""
        return self.flag & FLAG_ONEWAY != 0

    @property
    def fields(self) -> dict[str, str]:
        """The ext fields by name; of a repeated one the last. Made anew at each call."""
        return dict(self.all_pairs() or ())

    def all_pairs(self) -> Iterable[tuple[str, str]] | None:
        """The ext fields in wire order: the typed header's, then ``pairs``; ``None``: no part."""
        if self.header is None:
            return self.pairs
        if self.pairs is None:
            return self.header.pairs()
        return (*self.header.pairs(), *self.pairs)

    def read(self, header_type: type[H]) -> H:
        """The typed header, whichever codec the command came in.

        Raises:
            HeaderError: a required field is absent, or a field is not of its type.
        """
        if isinstance(self.header, header_type):
            return self.header
        if self.values is not None:
            return header_type.from_values(self.values)
        # Java reads an empty text of a binary header as null.
        return header_type.from_fields(
            self.fields, empty_is_absent=self.serialize is SerializeType.ROCKETMQ
        )


def _extra_pairs(extra: Extra) -> tuple[tuple[str, str], ...] | None:
    if not extra:
        return None
    return tuple(extra.items() if isinstance(extra, Mapping) else extra)
