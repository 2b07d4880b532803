"""What a member says of itself when a broker asks on somebody's behalf.

Administration tools ask a broker, and the broker asks the member on the connection that the member
has made: its settings by RocketMQ's names, and what it holds of each queue (cf.
DefaultMQPushConsumerImpl.consumerRunningInfo, consumerStatus).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from remoting.protocol.bodies import encode
from remoting.protocol.bodies.clients import ConsumerRunningInfo, ProcessQueueInfo
from remoting.protocol.bodies.group import GetConsumerStatusBody
from remoting.protocol.bodies.heartbeat import ConsumerData
from remoting.protocol.codes import VERSION, ResponseCode, name_of
from remoting.protocol.command import Command
from remoting.protocol.errors import HeaderError
from remoting.protocol.headers.group import GetConsumerStatusRequestHeader
from remoting.protocol.queue import MessageQueue

CONSUME_ORDERLY = "PROP_CONSUMEORDERLY"


@dataclass(frozen=True, slots=True)
class Running:
    """What a consumer knows beyond its membership.

    Attributes:
        settings: by the names of RocketMQ's beans.
        queues: what it holds of each.
    """

    settings: Mapping[str, str] = field(default_factory=dict)
    queues: Mapping[MessageQueue, ProcessQueueInfo] = field(default_factory=dict)


def running_info(
    data: ConsumerData,
    running: Running,
    owned: Iterable[MessageQueue],
    *,
    ordered: bool,
    name_servers: Iterable[str],
    started_ms: int,
) -> bytes:
    """The answer to GET_CONSUMER_RUNNING_INFO."""
    properties = {
        "PROP_NAMESERVER_ADDR": "".join(f"{address};" for address in name_servers),
        "PROP_CONSUME_TYPE": data.consume_type,
        "PROP_CLIENT_VERSION": name_of(VERSION),
        "PROP_CONSUMER_START_TIMESTAMP": str(started_ms),
        CONSUME_ORDERLY: "true" if ordered else "false",
        "consumerGroup": data.group_name,
        "messageModel": data.message_model,
        "consumeFromWhere": data.consume_from_where,
        **running.settings,
    }
    table = {queue: running.queues.get(queue, ProcessQueueInfo()) for queue in owned}
    return encode(
        ConsumerRunningInfo(
            properties=properties, subscription_set=data.subscription_data_set, mq_table=table
        )
    )


def consumer_status(command: Command, running: Running) -> Command:
    """The answer to GET_CONSUMER_STATUS_FROM_CLIENT: how far it is in the queues of a topic."""
    try:
        topic = command.read(GetConsumerStatusRequestHeader).topic
    except HeaderError as error:
        return command.reply(ResponseCode.SYSTEM_ERROR, str(error))
    table = {
        queue: held.commit_offset for queue, held in running.queues.items() if queue.topic == topic
    }
    return command.reply(body=encode(GetConsumerStatusBody(message_queue_table=table)))
