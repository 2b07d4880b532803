"""Series of sends: frames that follow each other and differ only in what is each message's own.

A client that sends many messages of one size to one topic writes the same header again and again;
only the opaque, the queue, the birth time and the message's id and keys are new, each as long as
before. Where a read holds enough such frames, they are compared with one that was understood
before, and laid out, all at once as the rows of a matrix (``hot.rows``): no header is parsed, and
no record is packed, by itself.

What is compared is exact: a frame is taken only if all its other bytes are those of the model, and
its own ones are digits, or letters and digits, where the model's are. So whatever the model means,
it means. A frame that is any different ends the series and goes ``hot.send``'s way.
"""

from __future__ import annotations

import string
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from broker.hot.answers import framed
from broker.hot.headers import DECODE_ERRORS, KEY_BYTES, SendFields, decode_send, has_few_fields
from broker.hot.numpy_loader import NUMPY
from broker.hot.properties import Stored, stored
from broker.hot.targets import MAX_TARGETS, Target, Targets, key_of
from broker.hot.turn import Turn
from broker.state import BrokerState
from remoting.protocol.codes import RequestCode
from remoting.protocol.frame import PREFIX_BYTES
from remoting.protocol.message.properties import CLUSTER, ENTRY_END, KEYS, NAME_END, UNIQ_KEY
from remoting.protocol.message.record import FIXED_BYTES_V4, HEAD_V4, MAGIC_V1

if TYPE_CHECKING:
    from broker.hot.rows import Like, Rows
    from broker.store.bulk import Run

MIN_SERIES: Final = 10
"""Frames from which on a series is faster than the same frames one by one."""

MAX_SERIES: Final = 256
"""Frames taken at once: some 0.4 ms."""

MAX_MODELS: Final = 64
"""Models kept, of some 4 KiB each; more are a stream of odd headers, for which it starts anew."""

_MODEL_KEY_BYTES: Final = 64
_BEGINNING: Final = (b'{"code":%d,"extFields":{' % RequestCode.SEND_MESSAGE_V2)[:KEY_BYTES]
_LONGEST_OPAQUE: Final = 9
_LONGEST_NUMBER: Final = 9
_LONGEST_BORN: Final = 18

_NAME_END: Final = b"\\u0001"
_ENTRY_END: Final = b"\\u0002"
_OWN_PROPERTIES: Final = {UNIQ_KEY.encode(), KEYS.encode()}

PLAIN: Final = f"{string.ascii_letters}{string.digits}-_.:#@".encode()
"""What a text of its own may consist of: none of it is escaped, or separates anything."""

Span = tuple[int, int]


class Own(NamedTuple):
    """Where in a header, counted from its frame's beginning, a message's own bytes are.

    Attributes:
        opaque, queue, born: numbers.
        texts: values of properties, and where each begins in the properties that are stored.
    """

    opaque: Span
    queue: Span
    born: Span
    texts: tuple[tuple[Span, int], ...]


class Model:
    """A frame that was understood, and what its likes are made of."""

    __slots__ = ("fields", "generation", "like", "properties", "tags_code", "targets", "waits")

    def __init__(self, like: Like, fields: SendFields, kept: Stored) -> None:
        self.like = like
        self.fields = fields
        self.properties, self.waits, self.tags_code = kept
        self.targets: dict[int, Target] = {}
        self.generation = -1


class Series:
    """Serves series of SEND_MESSAGE_V2."""

    __slots__ = ("_bulk", "_cluster", "_host", "_max_body", "_models", "_targets", "_turn")

    def __init__(self, state: BrokerState, turn: Turn, targets: Targets) -> None:
        self._turn = turn
        self._targets = targets
        self._bulk = state.store.bulk
        self._host = state.packed_host
        self._max_body = state.store.config.max_message_size
        self._cluster = CLUSTER.encode() + NAME_END + state.config.cluster_name.encode()
        self._models: dict[tuple[int, bytes], Model] = {}

    def serve(self, buffer: bytes, position: int, body_at: int, end: int, most: int) -> int:
        """Work the frame at ``position``, whose body begins and ends there, and those behind it.

        Args:
            most: frames of this one's length that ``buffer`` can hold; at least ``MIN_SERIES``.

        Returns:
            How many frames were worked; 0: they have to be looked at one by one.
        """
        header_at, size = position + PREFIX_BYTES, end - position
        beginning = buffer[header_at : header_at + _MODEL_KEY_BYTES]
        far = position + (MIN_SERIES - 1) * size
        if (
            not beginning.startswith(_BEGINNING)
            # Sends to many topics in turns are not alike: seen at the next one for next to nothing.
            or buffer[header_at + size : header_at + size + _MODEL_KEY_BYTES] != beginning
            or buffer[far : far + PREFIX_BYTES] != buffer[position:header_at]
            or not self._turn.takes_sends
            or not 0 < end - body_at <= self._max_body
        ):
            return 0
        rows = NUMPY.rows()
        if rows is None:
            return 0
        key = (body_at - header_at, beginning)
        model = self._models.get(key)
        found = None if model is None else model.like.rows(buffer, position, size, most)
        if found is None or found.count == 0:
            model = self._learn(key, buffer[position:body_at])
            found = None if model is None else model.like.rows(buffer, position, size, most)
        if model is None or found is None or found.count < MIN_SERIES:
            return 0
        return found.count if self._put(model, found, end - body_at) else 0

    def _learn(self, key: tuple[int, bytes], head: bytes) -> Model | None:
        """Understand a frame, given without its body; None when it is unusual in any way."""
        header = head[PREFIX_BYTES:]
        try:
            decoded = decode_send(header)
        except DECODE_ERRORS:
            return None
        fields = decoded.extFields
        kept = stored(fields.i, self._cluster)
        if kept is None or decoded.flag or not has_few_fields(header):
            return None
        own = own_bytes(head, fields.i, kept[0])
        rows = NUMPY.rows()
        if own is None or rows is None or decoded.code != RequestCode.SEND_MESSAGE_V2:
            return None
        if len(self._models) >= MAX_MODELS:
            self._models.clear()
        model = self._models[key] = Model(rows.Like(head, own), fields, kept)
        return model

    def _put(self, model: Model, found: Rows, body_bytes: int) -> bool:
        """Add the messages and their answers; False, with nothing done, where they can't be."""
        queues = found.queues
        counts = {queue: queues.count(queue) for queue in set(queues)}
        targets = self._targets_of(model, counts)
        if targets is None:
            return False
        first = targets[queues[0]]
        topic = first.topic_text
        # The topic's own length byte is in its text.
        size = FIXED_BYTES_V4 - 1 + body_bytes + len(topic) + len(model.properties)
        runs = [(targets[queue].run, count) for queue, count in counts.items()]
        if not self._make_room(runs, found.count * size):
            return False
        bulk, turn = self._bulk, self._turn
        position, count = bulk.position, found.count
        positions = range(position, position + count * size, size)
        numbers = _number(queues, targets, positions, size, model.tags_code)
        head = HEAD_V4.pack(
            *(size, MAGIC_V1, 0, 0, first.flag, 0, position, first.sys_flag, 0),
            *(turn.peer.born_host, bulk.store_ms, self._host, first.reconsume_times, 0, body_bytes),
        )
        bulk.records.append(found.records(head, topic, model.properties, position, numbers))
        bulk.position = position + count * size
        bulk.messages += count
        for run, added in runs:
            run.room -= added
        turn.messages += count
        turn.message_bytes += count * body_bytes
        fills = list(zip(positions, numbers, found.opaques, strict=True))
        self._answer(model, targets, counts, queues, fills)
        return True

    def _targets_of(self, model: Model, queues: Mapping[int, int]) -> dict[int, Target] | None:
        """Those of queues; None where one of them has to be looked at by itself."""
        known = model.targets
        if model.generation != self._targets.generation or len(known) > MAX_TARGETS:
            model.generation = self._targets.generation
            known.clear()
        for queue in queues:
            if queue not in known:
                model.fields.e = str(queue)
                key = key_of(model.fields)
                target = self._targets.get(key) or self._targets.find(key, model.fields)
                if target is None or target.batch:
                    return None
                known[queue] = target
        return {queue: known[queue] for queue in queues}

    def _make_room(self, runs: Sequence[tuple[Run, int]], size: int) -> bool:
        bulk = self._bulk
        # To make room for one may store what was gathered, after which all have to ask again.
        for _ in range(2):
            for run, count in runs:
                if run.room < count and not bulk.make_room(run, count, size):
                    return False
            if all(run.room >= count for run, count in runs) and (
                bulk.position + size <= bulk.limit or bulk.make_room(runs[0][0], 0, size)
            ):
                return True
        return False

    def _answer(
        self,
        model: Model,
        targets: dict[int, Target],
        counts: dict[int, int],
        queues: Sequence[int],
        fills: list[tuple[int, int, int]],
    ) -> None:
        turn = self._turn
        if model.waits and turn.syncs:
            turn.late += zip([targets[queue].answer for queue in queues], fills, strict=True)
            return
        opaque = fills[0][2]
        frames = {queue: targets[queue].frame(count, opaque) for queue, count in counts.items()}
        pairs = zip(queues, fills, strict=True)
        if all(frames.values()):
            turn.answers += [frames[queue] % fill for queue, fill in pairs]
        else:
            turn.answers += [framed(targets[queue].answer % fill) for queue, fill in pairs]


def _number(
    queues: Sequence[int],
    targets: dict[int, Target],
    positions: range,
    size: int,
    tags_code: int,
) -> list[int]:
    """Give each message its number and its queue its entry."""
    following = {queue: target.run.next_offset for queue, target in targets.items()}
    entries = {queue: target.run.entries for queue, target in targets.items()}
    numbers = []
    for queue, position in zip(queues, positions, strict=True):
        number = following[queue]
        following[queue] = number + 1
        numbers.append(number)
        entries[queue] += (position, size, tags_code)
    for queue, target in targets.items():
        target.run.next_offset = following[queue]
    return numbers


def own_bytes(head: bytes, properties: str, kept: bytes) -> Own | None:
    """What is each message's own in a frame without its body; None when it can't be told apart.

    Args:
        properties: the text in its header, decoded.
        kept: what is stored of it.
    """
    opaque = _span(head, b'"opaque":', b",}", _LONGEST_OPAQUE)
    queue = _span(head, b'"e":"', b'"', _LONGEST_NUMBER)
    born = _span(head, b'"g":"', b'"', _LONGEST_BORN)
    text = _span(head, b'"i":"', b'"', len(head))
    if opaque is None or queue is None or born is None or text is None:
        return None
    if not all(head[start:end].isdigit() for start, end in (opaque, queue, born)):
        return None
    sent = head[slice(*text)]
    plain = sent.replace(_NAME_END, NAME_END).replace(_ENTRY_END, ENTRY_END)
    if b"\\" in plain or plain != properties.encode():
        return None
    return Own(opaque, queue, born, tuple(_texts(sent, text[0], kept)))


def _span(head: bytes, before: bytes, ends: bytes, longest: int) -> Span | None:
    """Where the only value is that follows ``before``: up to one of the characters ``ends``.

    Inside a text of the header no quote stands without a backslash before it, so what begins with
    one and ends with a colon is the name of a field wherever it is found.
    """
    at = head.find(before)
    if at < 0 or head.find(before, at + 1) >= 0:
        return None
    start = at + len(before)
    found = [end for end in (head.find(mark, start) for mark in ends) if end >= 0]
    end = min(found, default=start)
    return (start, end) if start < end <= start + longest else None


def _texts(sent: bytes, at: int, kept: bytes) -> Iterator[tuple[Span, int]]:
    """The values of properties that mean nothing to a broker and are new with each message."""
    for entry in sent.split(_ENTRY_END):
        name, _, value = entry.partition(_NAME_END)
        stored_entry = name + NAME_END + value
        if name in _OWN_PROPERTIES and is_plain(value) and kept.count(stored_entry) == 1:
            start = at + len(name) + len(_NAME_END)
            yield (start, start + len(value)), kept.index(stored_entry) + len(name) + 1
        at += len(entry) + len(_ENTRY_END)


def is_plain(value: bytes) -> bool:
    """Whether a value has only letters, digits and what joins them."""
    return bool(value) and not value.translate(None, PLAIN)
