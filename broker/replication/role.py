"""What a broker is: a master that waits for its slaves or doesn't, or a slave.

A slave serves everything that reads. What would change its store or tables is refused with the
codes of RocketMQ, and clients then go to the master; its tables are copies of the master's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final

from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command

if TYPE_CHECKING:
    from remoting.connection import Connection

Answer = Command | Awaitable[Command | None] | None
Handler = Callable[[Command, "Connection"], Answer]

_UNAVAILABLE: Final = (
    ResponseCode.SERVICE_NOT_AVAILABLE,
    "this broker is a slave and takes no messages: send them to its master",
)
_CHANGED_AT_MASTER: Final = (
    ResponseCode.SYSTEM_ERROR,
    "this broker is a slave: topics and groups are changed at its master",
)

REFUSED: Final[dict[int, tuple[int, str]]] = {
    **dict.fromkeys(
        (
            RequestCode.SEND_MESSAGE,
            RequestCode.SEND_MESSAGE_V2,
            RequestCode.SEND_BATCH_MESSAGE,
            RequestCode.CONSUMER_SEND_MSG_BACK,
            RequestCode.SEND_REPLY_MESSAGE,
            RequestCode.SEND_REPLY_MESSAGE_V2,
            RequestCode.RECALL_MESSAGE,
        ),
        _UNAVAILABLE,
    ),
    RequestCode.END_TRANSACTION: (
        ResponseCode.SLAVE_NOT_AVAILABLE,
        "this broker is a slave: transactions end at its master",
    ),
    **dict.fromkeys(
        (
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
            RequestCode.DELETE_TOPIC_IN_BROKER,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
            RequestCode.DELETE_SUBSCRIPTIONGROUP,
        ),
        _CHANGED_AT_MASTER,
    ),
}
"""Code and text with which a slave refuses a request."""


HANDING_OVER: Final[dict[int, tuple[int, str]]] = {
    code: (answer, text.replace("is a slave", "is handing over to its slave"))
    for code, (answer, text) in REFUSED.items()
}
"""With which a master refuses what would change its log or its tables, until its slave has both."""

SEALED: Final[dict[int, tuple[int, str]]] = {
    **HANDING_OVER,
    **dict.fromkeys(
        (
            *(RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET),
            *(RequestCode.CLONE_GROUP_OFFSET, RequestCode.LOCK_BATCH_MQ),
        ),
        (ResponseCode.SYSTEM_ERROR, "this broker is handing over offsets and locks to its slave"),
    ),
}
"""With which it refuses while the slave copies the tables for the last time."""


class RoleGate:
    """Refuses what the broker's role doesn't permit.

    Attributes:
        refused: code and text by request code.
    """

    def __init__(self, refused: Mapping[int, tuple[int, str]]) -> None:
        self.refused = refused

    def wrap(self, handler: Handler) -> Handler:
        """Return a handler that refuses these requests, and calls ``handler`` for others."""

        def handle(command: Command, connection: Connection) -> Answer:
            refusal = self.refused.get(command.code)
            if refusal is None:
                return handler(command, connection)
            return None if command.is_oneway else command.reply(*refusal)

        return handle
