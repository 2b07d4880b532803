"""Request and reply: a message that a consumer answers (cf. RequestResponseFuture, MessageUtil).

A request has a correlation id and this client's id. The reply goes to the reply topic of the
request's cluster, and the broker that gets it pushes it to the client.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Generic, Protocol, TypeVar

from client.errors import RequestTimeout, UnreadableMessage, UsageError
from client.limits import REPLY_TIMEOUT, REQUEST_TIMEOUT
from client.message import Message, Receipt, Reply
from client.network.context import ClientContext
from client.network.routes import address_of
from client.producer.columns import RESERVED, Preparer
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.headers.send import ReplyMessageRequestHeader, SendMessageRequestHeaderV2
from remoting.protocol.message import properties
from remoting.protocol.message.compression import decompress
from remoting.protocol.message.record import COMPRESSED
from remoting.protocol.names import AUTO_CREATE_TOPIC, REPLY_TOPIC_SUFFIX
from remoting.protocol.queue import MessageQueue

T = TypeVar("T")

MSG_TYPE_REPLY = "reply"

_NOT_THE_APPLICATIONS = RESERVED - {properties.TAGS, properties.KEYS}


class Answerable(Protocol):
    """A message with its properties, such as ``ReceivedMessage``."""

    @property
    def topic(self) -> str:
        """The topic it came from."""

    @property
    def queue(self) -> MessageQueue:
        """Its queue."""

    @property
    def properties(self) -> Mapping[str, str]:
        """Its properties."""


class Requests(Generic[T]):
    """The requests and replies of one producer."""

    def __init__(self, context: ClientContext, group: str, preparer: Preparer[T]) -> None:
        self._context = context
        self._group = group
        self._preparer = preparer
        self._default_queues = preparer.options.default_queues

    async def ask(
        self,
        message: Message[T],
        timeout: float,
        send: Callable[[Mapping[str, str]], Awaitable[Receipt]],
    ) -> Reply[T]:
        """Send a request and wait for its reply; see ``Producer.request``.

        Args:
            timeout: seconds for both.
            send: sends the message with the properties that make it a request.
        """
        context, correlation_id = self._context, str(uuid.uuid4())
        expected = context.replies.expect(correlation_id)
        system = {
            properties.CORRELATION_ID: correlation_id,
            properties.REPLY_TO_CLIENT: context.client_id,
            properties.TTL: str(round(timeout * 1000)),
        }
        try:
            async with asyncio.timeout(timeout):
                await send(system)
                reply = await expected
        except TimeoutError:
            raise RequestTimeout(
                f"no reply within {timeout:g} s",
                topic=message.topic,
                group=self._group,
                hint="see that a consumer of the topic replies, or give it more time",
            ) from None
        finally:
            context.replies.forget(correlation_id)
        try:
            return self._reply_of(reply)
        except Exception as error:  # the serde may raise anything
            raise UnreadableMessage(
                f"the reply can't be read: {error}",
                topic=message.topic,
                group=self._group,
                hint="use the serde of the consumer that replies",
            ) from error

    def _reply_of(self, command: Command) -> Reply[T]:
        header = command.read(ReplyMessageRequestHeader)
        received = properties.decode((header.properties or "").encode())
        body = bytes(command.body)
        if header.sys_flag & COMPRESSED:
            body = decompress(body, header.sys_flag)
        return Reply(
            body=self._preparer.serde.loads(body),
            properties={
                name: value for name, value in received.items() if name not in _NOT_THE_APPLICATIONS
            },
            id=received.get(properties.UNIQ_KEY, ""),
            sent_ms=header.born_timestamp,
        )

    async def reply(self, request: Answerable, body: T, own: Mapping[str, str] | None) -> None:
        """Answer a request; see ``Producer.reply``."""
        asked = request.properties
        cluster = asked.get(properties.CLUSTER)
        client_id = asked.get(properties.REPLY_TO_CLIENT)
        correlation_id = asked.get(properties.CORRELATION_ID)
        if cluster is None or client_id is None or correlation_id is None:
            raise UsageError(
                "the message is no request",
                topic=request.topic,
                hint="only messages that were sent with request() can be answered",
            )
        columns = self._preparer.prepare(
            Message(cluster + REPLY_TOPIC_SUFFIX, body, properties=own),
            REQUEST_TIMEOUT,
            system={
                properties.MSG_TYPE: MSG_TYPE_REPLY,
                properties.CORRELATION_ID: correlation_id,
                properties.REPLY_TO_CLIENT: client_id,
                properties.TTL: asked.get(properties.TTL, "0"),
            },
        )
        columns.seal(self._context.ids.take)
        payload = columns.payload()
        route = await self._context.routes.to_write(
            columns.topic, self._default_queues, REQUEST_TIMEOUT
        )
        # The requester is connected to the broker that has the request. RocketMQ takes any broker.
        broker = request.queue.broker_name
        near = [queue for queue in route.writable if queue.broker_name == broker]
        queue = (near or route.writable)[0]
        header = SendMessageRequestHeaderV2(
            producer_group=self._group,
            topic=columns.topic,
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_nums=self._default_queues,
            queue_id=queue.queue_id,
            sys_flag=payload.sys_flag,
            born_timestamp=payload.born_ms,
            flag=payload.flag,
            properties=payload.properties,
            reconsume_times=0,
            batch=False,
            bname=queue.broker_name,
        )
        await self._context.remote.call(
            address_of(route, queue),
            RequestCode.SEND_REPLY_MESSAGE_V2,
            header,
            body=payload.body,
            timeout=REPLY_TIMEOUT,
            topic=columns.topic,
            queue=queue,
            group=self._group,
        )
