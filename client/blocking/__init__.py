"""The client without an event loop: same names, same arguments, for threads.

    from client import blocking

    with blocking.Producer("127.0.0.1:9876", group="orders") as producer:
        receipt = producer.send("orders", b"...")

Each object runs the ordinary client on an event loop of its own, in a thread of its own; what is
made from an ``Instance`` shares the instance's. Objects may be used by several threads.
"""

from __future__ import annotations

from client.blocking.twins import Admin, Instance, Producer, PullConsumer, PushConsumer

__all__ = ["Admin", "Instance", "Producer", "PullConsumer", "PushConsumer"]
