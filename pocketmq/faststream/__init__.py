"""FastStream on PocketMQ: ``from pocketmq.faststream import PocketBroker``.

    broker = PocketBroker("127.0.0.1:9876", app="shop")
    app = FastStream(broker)

    @broker.subscriber("orders", tags="paid")
    @broker.publisher("bills")
    async def bill(order: Order) -> Bill: ...

It needs the extra ``faststream``. No other module imports this package. See ``docs/faststream.md``.
"""

from __future__ import annotations

try:
    import faststream  # noqa: F401 - says what to install if it isn't
except ImportError as error:
    message = "pocketmq.faststream needs FastStream: pip install 'pocketmq[faststream]'"
    raise ImportError(message) from error

from faststream import AckPolicy

import pocketmq.server.own_client  # noqa: F401 - first: it imports ours if a module hides it
from pocketmq import Orderly, Sql, Tags
from pocketmq.faststream.broker import PocketBroker, PocketPublisher, PocketRoute, PocketRouter
from pocketmq.faststream.message import PocketMessage
from pocketmq.faststream.publishing import PocketResponse
from pocketmq.faststream.testing import TestPocketBroker

__all__ = ["AckPolicy", "Orderly", "PocketBroker", "PocketMessage", "PocketPublisher"]
__all__ += ["PocketResponse", "PocketRoute", "PocketRouter", "Sql", "Tags", "TestPocketBroker"]
