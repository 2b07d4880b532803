"""The client without an event loop: the same names and arguments, for threads.

    from client import blocking

    with blocking.Producer("127.0.0.1:9876", group="orders") as producer:
        receipt = producer.send("orders", b"...")

Each object runs the asyncio client in its own thread with its own event loop; objects created from
an ``Instance`` share the instance's. Objects may be used by several threads.
"""

from __future__ import annotations

from client.blocking.twins import (
    Admin,
    Instance,
    Producer,
    PullConsumer,
    PushConsumer,
    Transaction,
)

__all__ = ["Admin", "Instance", "Producer", "PullConsumer", "PushConsumer", "Transaction"]
