"""What a broker of ours tells of its store's files; others say nothing of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pocketmq.doctor.findings import Finding, failed, warning
from remoting.docs import DOCS

INDEX_BACKLOG: Final = 256 * 1024 * 1024
"""Bytes of log, eight times what the index's thread lets wait before it goes on at any load."""


def store_files(name: str, table: dict[str, str]) -> Iterator[Finding]:
    """Lost offsets, another name, what recovery stepped over, and an index that lags behind."""
    if table.get("pocketmqOffsetsLost") == "true":
        yield failed(
            "offsets",
            f"{name} found messages but no config/consumerOffset.json when it started, so every "
            "group starts over by the rule for new groups",
            "unless that is intended, stop it, put the file back from a backup and start it; or "
            f"set groups with pocketmq group reset; see {DOCS}operating.md#what-is-on-disk",
        )
    if before := table.get("pocketmqNamedBefore"):
        yield warning(
            "name",
            f"the store of {name} was written by {before} before this start: clients take its "
            "queues for new ones",
            f"unless that is intended, stop it and start it with --name {before}; see "
            f"{DOCS}operating.md#the-name-of-a-broker",
        )
    stepped_over = table.get("pocketmqRecoverySteppedOver", "0")
    if stepped_over != "0":
        yield warning(
            "store",
            f"{name} stepped over {stepped_over} damaged places of its log when it started: the "
            "messages there are lost",
            "look at the disk; pocketmq store verify names the places",
        )
    docs = f"see {DOCS}operating.md#finding-messages"
    backlog = table.get("pocketmqIndexBacklogBytes", "0")
    if trouble := table.get("pocketmqIndexTrouble"):
        yield warning("index", f"{name} does not index messages: {trouble}", docs)
    elif backlog.isdecimal() and int(backlog) > INDEX_BACKLOG:
        yield warning(
            "index",
            f"{name}'s index is {int(backlog) // 2**20} MiB behind, so the newest messages may not "
            "be found by their keys",
            f"give the broker more of a processor, or turn messageIndexEnable off; {docs}",
        )
