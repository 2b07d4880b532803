"""A simple encoder as a loop over rows: the real one has to give the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, zip_longest
from typing import Any

from client.network.routes import by_sharding_key
from client.producer.columns import RESERVED
from remoting.protocol.message import batch as batches
from remoting.protocol.message.properties import DELAY, ENTRY_END, KEYS, TAGS, UNIQ_KEY
from remoting.protocol.names import RETRY_PREFIX
from remoting.protocol.queue import MessageQueue
from spark_connector.limits import SINK_MAX_BATCH_ROWS
from spark_connector.sink.columns import Rows
from spark_connector.sink.elements import STAND_INS
from spark_connector.sink.encoder import TIMER, Parcel, Recipe, row_limit

_Row = dict[str, Any]
_Place = tuple[str, MessageQueue | None]


def plain_parcels(
    batch: Any, recipe: Recipe, queues_of: Callable[[str], Sequence[MessageQueue]], first: int = 0
) -> list[Parcel]:
    """The parcels of a record batch whose rows can all be sent."""
    rows = Rows.of(batch, recipe.chosen, first)
    keys = recipe.unique_keys(first, rows.get("uniqKey"), rows.count).to_pylist()
    lanes: dict[_Place, list[tuple[int, bytes]]] = {}
    singles = []
    names = list(rows.columns)
    values = zip(*(column.to_pylist() for column in rows.columns.values()), strict=True)
    for index, (row_values, key) in enumerate(zip(values, keys, strict=True)):
        row = dict(zip(names, row_values, strict=True))
        place = _place(row, recipe, queues_of)
        text = _text(row, key)
        extra, instant = _delay(row, recipe)
        if extra or place[0].startswith(RETRY_PREFIX):
            flag = row.get("flag") or 0
            full_text = (text + extra).decode()
            singles.append(Parcel(*place, row["body"], 1, first + index, full_text, flag, instant))
        else:
            element = batches.encode([(row.get("flag") or 0, row["body"], text)])
            lanes.setdefault(place, []).append((first + index, element))
    cut = [list(_cut(place, lane, recipe, queues_of)) for place, lane in lanes.items()]
    turns = chain.from_iterable(zip_longest(*cut))
    return [parcel for parcel in turns if parcel is not None] + singles


def _place(row: _Row, recipe: Recipe, queues_of: Callable[[str], Sequence[MessageQueue]]) -> _Place:
    topic = recipe.topic or row["topic"].decode()
    if "queueId" in recipe.deciding and row["queueId"] is not None:
        broker = (row.get("brokerName") or b"").decode()
        for queue in queues_of(topic):
            if queue.queue_id == row["queueId"] and broker in ("", queue.broker_name):
                return topic, queue
    if "shardingKey" in recipe.deciding:
        key = row.get("shardingKey") or row.get("keys")
        if key:
            return topic, by_sharding_key(queues_of(topic), key.decode())
    return topic, None


def _text(row: _Row, key: bytes) -> bytes:
    entries = [(UNIQ_KEY.encode(), key), (TAGS.encode(), row.get("tags"))]
    entries.append((KEYS.encode(), row.get("keys")))
    stand_ins = {name for name, column in STAND_INS if not row.get(column)}
    for name, value in row.get("properties") or ():
        if name.decode() not in RESERVED or name.decode() in stand_ins:
            entries.append((name, value))
    return ENTRY_END.join(name + b"\x01" + value for name, value in entries if value)


def _delay(row: _Row, recipe: Recipe) -> tuple[bytes, int | None]:
    level, instant = row.get("delayLevel"), row.get("deliverTimestamp")
    if level is None and instant is None:
        level = recipe.delay_level
    if level:
        return f"\x02{DELAY}\x01{level}".encode(), None
    if instant is None:
        return b"", None
    milliseconds = round(instant.timestamp() * 1000)
    return f"\x02{TIMER}\x01{milliseconds}".encode(), milliseconds


def _cut(
    place: _Place,
    lane: list[tuple[int, bytes]],
    recipe: Recipe,
    queues_of: Callable[[str], Sequence[MessageQueue]],
) -> Iterator[Parcel]:
    limit = SINK_MAX_BATCH_ROWS if place[1] else row_limit(len(lane), len(queues_of(place[0])))
    taken: list[tuple[int, bytes]] = []
    size = 0
    for number, element in lane:
        if taken and (size + len(element) > recipe.max_batch_bytes or len(taken) == limit):
            yield Parcel(*place, b"".join(part for _, part in taken), len(taken), taken[0][0])
            taken, size = [], 0
        taken.append((number, element))
        size += len(element)
    if taken:
        yield Parcel(*place, b"".join(part for _, part in taken), len(taken), taken[0][0])
