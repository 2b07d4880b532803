"""Sends what the Spark examples read: the flights of 2013, and the airlines' names.

NAMESRV_ADDR=127.0.0.1:9876 python examples/spark/send_flights.py [COUNT]
"""

from __future__ import annotations

import asyncio
import os
import sys

from pocketmq.demo import departures


def main() -> None:
    """Send them."""
    nameserver = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
    limit = int(sys.argv[1]) if len(sys.argv) > 1 else None
    count = asyncio.run(departures.send(nameserver, "flights", departures.records(limit)))
    asyncio.run(departures.send_airlines(nameserver, "airlines", departures.airlines()))
    print(f"{count} flights sent")


if __name__ == "__main__":
    main()
