"""Send and read a message with the compiled core and without extras.

The release runs it with every wheel that it builds.
"""

import sys
from importlib.util import find_spec

from broker import fast_path
from client import blocking
from pocketmq import testing

assert find_spec("numpy") is None
assert fast_path.KIND == "compiled", fast_path.WHY
with testing.broker() as server:
    with blocking.Producer(server.nameserver, group="shop") as producer:
        producer.send("orders", b"tea")
    with blocking.PullConsumer(server.nameserver, group="shop") as consumer:
        consumer.assign(consumer.queues("orders"))
        (message,) = consumer.get_many(1, timeout=30)
sys.stdout.write(f"{message.body!r}\n")
