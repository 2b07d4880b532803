"""Topics filled with messages, at our or Apache's broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from remoting.blocking import BlockingConnection
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command, Header
from remoting.protocol.headers.admin import CreateTopicRequestHeader, TopicRequestHeader
from remoting.protocol.headers.send import SendMessageRequestHeaderV2
from remoting.protocol.message import batch, properties

BORN_MS = 1_700_000_000_000
MOST_AT_ONCE = 2000
MOST_BYTES_AT_ONCE = 1024 * 1024


class Filler:
    """Creates topics at one broker, and fills them.

    Args:
        address: the broker's.
        broker_name: its name.
    """

    def __init__(self, address: str, broker_name: str = "broker-a") -> None:
        self.address = address
        self.broker_name = broker_name
        self._connection = BlockingConnection(address, timeout=30)

    def close(self) -> None:
        self._connection.close()

    def create(self, topic: str, *, queues: int = 4) -> None:
        header = CreateTopicRequestHeader(
            topic=topic,
            default_topic="TBW102",
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=6,
            topic_filter_type="SINGLE_TAG",
        )
        self._ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    def delete(self, topic: str) -> None:
        self._ask(RequestCode.DELETE_TOPIC_IN_BROKER, TopicRequestHeader(topic=topic))

    def send(
        self,
        topic: str,
        bodies: Sequence[bytes],
        *,
        queue_id: int = 0,
        tags: Sequence[str] = (),
        extra: Mapping[str, str] | None = None,
    ) -> None:
        """Send to one queue, in batches; message ``n`` has the key ``k<n>`` and the tag
        ``tags[n % len(tags)]``."""
        elements = []
        size = 0
        for number, body in enumerate(bodies):
            facts = {**(extra or {}), properties.KEYS: f"k{number}"}
            if tags:
                facts[properties.TAGS] = tags[number % len(tags)]
            elements.append((0, body, properties.encode(facts)))
            size += len(body)
            if len(elements) >= MOST_AT_ONCE or size >= MOST_BYTES_AT_ONCE:
                self._send(topic, queue_id, elements)
                elements, size = [], 0
        if elements:
            self._send(topic, queue_id, elements)

    def _send(self, topic: str, queue_id: int, elements: list[tuple[int, bytes, bytes]]) -> None:
        header = SendMessageRequestHeaderV2(
            producer_group="fill",
            topic=topic,
            default_topic="TBW102",
            default_topic_queue_nums=4,
            queue_id=queue_id,
            sys_flag=0,
            born_timestamp=BORN_MS,
            flag=0,
            properties="",
            reconsume_times=0,
            batch=True,
        )
        self._ask(RequestCode.SEND_BATCH_MESSAGE, header, batch.encode(elements))

    def _ask(self, code: int, header: Header, body: bytes = b"") -> None:
        answer = self._connection.request(Command.request(code, header, body=body))
        assert answer.code == ResponseCode.SUCCESS, f"{answer.code} {answer.remark}"
