"""Every command of Apache's administration tool, at our broker and at Apache's in the same state.

``python -m tests.interop.mqadmin VERSION ...`` rewrites the releases' columns in
docs/compatibility.md.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import client
from pocketmq import testing
from tests.interop.apache import VERSIONS, apache, mqadmin_command
from tests.support.tour import HOME
from tests.support.waiting import until

PAGE: Final = HOME / "docs" / "compatibility.md"
SECTION: Final = "## RocketMQ's mqadmin\n"
COMMAND_MS: Final = 30_000
ENDLESS_MS: Final = 2_000
"""For the commands that repeat until they are interrupted."""
STATE_TIMEOUT: Final = 60.0
KEYS_NAMED: Final = 6
"""More different keys are not named in the table, which would change with each new setting."""
RETRIES: Final = "%RETRY%billing"
QUEUES: Final = 3
"""Those of Orders, and the retry queue."""

TOPICS_FILE = '[{"topicName":"Listed","readQueueNums":2,"writeQueueNums":2,"perm":6}]'
GROUPS_FILE = '[{"groupName":"listed"}]'

COMMANDS = """
updateTopic -b {broker} -t Made -r 2 -w 2
updateTopicPerm -b {broker} -t Made -p 4
updateSubGroup -b {broker} -g made
updateBrokerConfig -b {broker} -k fileReservedTime -v 71
sendMessage -t Orders -b broker-a -i 0 -p hello -k traced -m true
topicRoute -t Orders
topicRoute -t Orders -l
topicStatus -t Orders
topicClusterList -t Orders
brokerStatus -b {broker}
queryMsgById -i {offset_id} {id_topic}
queryMsgById -i {offset_id} {id_topic} -g billing -d {client_id}
queryMsgByKey -t Orders -k k1
queryMsgByUniqueKey -t Orders -i {id}
queryMsgByUniqueKey -t Orders -i {id} -a
queryMsgByOffset -t Orders -b broker-a -i 0 -o 0
queryMsgTraceById -i {id}
printMsg -t Orders
printMsgByQueue -t Orders -a broker-a -i 0 -p true -d true -f true
brokerConsumeStats -b {broker}
producerConnection -g writers -t Orders
consumerConnection -g billing
consumerProgress -g billing
consumerProgress -g billing -s true
consumerProgress
consumerStatus -g billing
consumerStatus -g billing -i {client_id}
cloneGroupOffset -s reports -d cloned -t Orders -o true
producer -b {broker}
clusterList
clusterList -m
topicList
topicList -c
updateKvConfig -s space -k key -v value
deleteKvConfig -s space -k key
wipeWritePerm -b broker-a
addWritePerm -b broker-a
updateOrderConf -m put -t Orders -v broker-a:2
updateOrderConf -m get -t Orders
updateOrderConf -m delete -t Orders
cleanExpiredCQ -b {broker}
deleteExpiredCommitLog -b {broker}
statsAll
statsAll -a -t Orders
allocateMQ -t Orders -i 10.0.0.1,10.0.0.2
getNamesrvConfig
updateNamesrvConfig -k orderMessageEnable -v true
getBrokerConfig -b {broker}
getConsumerConfig -g billing
queryCq -t Orders -q 0 -i 0 -b {broker} -g billing
consumeMessage -t Orders -c 3
consumeMessage -t Orders -b broker-a -i 0 -o 0 -c 1
exportMetadata -c DefaultCluster -f {home}
exportConfigs -c DefaultCluster -f {home}
exportMetrics -c DefaultCluster -f {home}
updateTopicList -b {broker} -f {home}/topics.json
updateSubGroupList -b {broker} -f {home}/groups.json
setConsumeMode -b {broker} -t Orders -g reports -m PULL
resetMasterFlushOffset -b {broker} -o 0
updateStaticTopic -t Fixed -qn 4 -b broker-a
remappingStaticTopic -t Fixed -b broker-a
exportPopRecord -b {broker} -d true
haStatus -b {broker}
getBrokerEpoch -b broker-a
getColdDataFlowCtrInfo -b {broker}
updateColdDataFlowCtrGroupConfig -b {broker} -g reports -v 1000
removeColdDataFlowCtrGroupConfig -b {broker} -g reports
setCommitLogReadAheadMode -b {broker} -m 0
createUser -b {broker} -u someone -p secret
createAcl -b {broker} -s User:someone -r Topic:Orders -a Pub -d Allow
rocksDBConfigToJson -n {nameserver} -c DefaultCluster -t topics
checkRocksdbCqWriteProgress -c DefaultCluster
resetOffsetByTime -g reports -t Orders -s 0 -f true
skipAccumulatedMessage -g reports -t Orders
resetOffsetByTime -g billing -t Orders -s 0 -f true
skipAccumulatedMessage -g billing -t Orders
sendMsgStatus -b broker-a -c 2
checkMsgSendRT -t Orders -a 2
deleteSubGroup -b {broker} -g made
deleteTopic -c DefaultCluster -t Made
cleanUnusedTopic -b {broker}
startMonitoring
clusterRT -a 2 -s 16
"""
"""What is run, in this order; a release leaves out what it doesn't have."""

ENDLESS: Final = frozenset({"clusterRT", "startMonitoring"})

_WITH_ACL = "needs aclEnable; test_acl_here.py runs it"
_NO_ACL = "PocketMQ has the accounts of RocketMQ 4.9"
_NO_CONTROLLER = "PocketMQ has no controller"
_NO_CONTAINER = "one process is one broker"
_FILES_OF_JAVA = "it reads files of Apache's broker, and asks no server"
NOT_RUN: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        (
            *("updateAclConfig", "deleteAclConfig", "clusterAclConfigVersion"),
            *("updateGlobalWhiteAddr", "getAclConfig"),
        ),
        _WITH_ACL,
    ),
    **dict.fromkeys(
        (
            *("updateUser", "deleteUser", "getUser", "listUser", "copyUser"),
            *("updateAcl", "deleteAcl", "getAcl", "listAcl", "copyAcl"),
        ),
        _NO_ACL,
    ),
    **dict.fromkeys(
        (
            *("getSyncStateSet", "getControllerMetaData", "getControllerConfig"),
            *("updateControllerConfig", "electMaster", "cleanBrokerMetadata"),
        ),
        _NO_CONTROLLER,
    ),
    **dict.fromkeys(("addBroker", "removeBroker"), _NO_CONTAINER),
    **dict.fromkeys(("dumpCompactionLog", "exportMetadataInRocksDB"), _FILES_OF_JAVA),
}
"""Commands without a meaning here, and why."""

_NO_REGION = "4.9.7 stores no `MSG_REGION` and `TRACE_ON` with each message"
_TOPIC_AS_GROUP = "5.3.3 lists a topic among its groups"
_SYSTEM_TOPICS = (
    "PocketMQ creates system topics when they are first used; 5.3.3 has them from the start, "
    "and lists a topic among its groups"
)
_OWN_SETTINGS = "each lists its own settings, and PocketMQ has no threads to size"
_NO_COLD_DATA = "PocketMQ doesn't limit reads of old messages per group"
_NO_POP = "pop consumption isn't served"
_NO_STATIC_TOPICS = "PocketMQ has no static topics"
_NO_ROCKSDB = "PocketMQ's store is the file store"
_OFFLINE = "with 5.3.3 the broker moves the offsets of an offline group, here the tool does"
REASONS: Final[Mapping[str, str]] = {
    "brokerStatus": "PocketMQ has those of 4.9 and of 5.3, and its own",
    "exportConfigs": "`filterServerNums` is a key of 4.9.7",
    "getBrokerConfig": _OWN_SETTINGS,
    "getNamesrvConfig": _OWN_SETTINGS,
    **dict.fromkeys(("printMsg", "printMsgByQueue"), f"{_NO_REGION}, 5.3.3 stores `WAIT`, too"),
    "consumeMessage": _NO_REGION,
    **dict.fromkeys(
        ("queryMsgById", "queryMsgByUniqueKey", "queryMsgByOffset"),
        f"{_NO_REGION}, {_TOPIC_AS_GROUP}",
    ),
    "topicList": _SYSTEM_TOPICS,
    "statsAll": _SYSTEM_TOPICS,
    "resetOffsetByTime": _OFFLINE,
    "skipAccumulatedMessage": _OFFLINE,
    "setConsumeMode": _NO_POP,
    "exportPopRecord": _NO_POP,
    "resetMasterFlushOffset": "PocketMQ has no such offset",
    "getBrokerEpoch": _NO_CONTROLLER,
    "updateStaticTopic": _NO_STATIC_TOPICS,
    "remappingStaticTopic": _NO_STATIC_TOPICS,
    **dict.fromkeys(
        (
            *("getColdDataFlowCtrInfo", "updateColdDataFlowCtrGroupConfig"),
            *("removeColdDataFlowCtrGroupConfig", "setCommitLogReadAheadMode"),
        ),
        _NO_COLD_DATA,
    ),
    "createUser": _NO_ACL,
    "createAcl": _NO_ACL,
    "rocksDBConfigToJson": _NO_ROCKSDB,
    "checkRocksdbCqWriteProgress": _NO_ROCKSDB,
}
"""Why the output of a command differs."""


@dataclass
class Tool:
    """Apache's administration tool in one process."""

    process: subprocess.Popen[str]
    home: Path

    def run(self, *words: str) -> str:
        """Run a command; return what it printed."""
        limit = ENDLESS_MS if words[:1] and words[0] in ENDLESS else COMMAND_MS
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\t".join((str(limit), *words)) + "\n")
        self.process.stdin.flush()
        lines = []
        while (line := self.process.stdout.readline()) != "\4\n":
            assert line, "".join(lines)
            lines.append(line)
        return "".join(lines)


@contextmanager
def tool(version: str, home: Path) -> Iterator[Tool]:
    """Start the tool of a release; ``home`` is where it may write."""
    home.mkdir()
    with subprocess.Popen(
        mqadmin_command(version, home),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=home,
        env={**os.environ, "ROCKETMQ_HOME": str(home)},
    ) as process:
        try:
            yield Tool(process, home)
        finally:
            process.kill()


def names(run: Tool) -> list[str]:
    """Return the tool's commands."""
    return re.findall(r"^   (\w+) ", run.run(), re.MULTILINE)


@asynccontextmanager
async def filled(nameserver: str) -> AsyncIterator[dict[str, str]]:
    """Make topics, messages, an offline group, and a group that has consumed all.

    Yields:
        values for ``COMMANDS``.
    """
    async with client.Admin(nameserver) as admin, client.Instance(nameserver) as instance:
        await admin.create_topic("Orders", queues=2)
        for group in ("billing", "reports"):
            await admin.create_group(group)
        queues = await admin.queues("Orders")
        await admin.commit("reports", dict.fromkeys(queues, 1))
        handled: list[client.ReceivedMessage[bytes]] = []

        async def all_handled(admin: client.Admin) -> bool:
            has_retries = RETRIES in await admin.topics(internal=True)
            return has_retries and len(handled) == len(receipts)

        member = {
            "group": "billing",
            "subscribe": {"Orders": "*"},
            "start_from": client.FIRST,
            "handler": handled.append,
        }
        traced = [client.MessageTrace()]
        async with instance.producer(group="writers", interceptors=traced) as producer:
            receipts = [
                await producer.send("Orders", b"x", tag="A", keys=[f"k{number}"], queue=queue)
                for number, queue in enumerate(3 * sorted(queues))
            ]
        # The first member makes the broker create the group's retry topic.
        async with instance.push_consumer(**member, interceptors=traced):
            await until(lambda: all_handled(admin), STATE_TIMEOUT)
        # Apache 4.9.7 lists a group's topics by its committed offsets.
        await admin.commit("billing", dict.fromkeys(await admin.queues(RETRIES), 0))
        async with instance.producer(group="writers"), instance.push_consumer(**member):
            await until(lambda: up_to_date(admin), STATE_TIMEOUT)
            yield {
                "id": receipts[0].id,
                "offset_id": receipts[0].offset_id or "",
                "client_id": instance.client_id,
                "nameserver": nameserver,
            }


async def up_to_date(admin: client.Admin) -> bool:
    """Return whether ``billing`` has committed the end of each queue, the retry queue included."""
    offsets = await admin.consume_stats("billing")
    return len(offsets) == QUEUES and all(
        at.consumer_offset == at.broker_offset for at in offsets.values()
    )


async def outputs(run: Tool, version: str, nameserver: str, broker: str) -> dict[str, str]:
    """Run all commands; return the output of each name."""
    known = names(run)
    (run.home / "topics.json").write_text(TOPICS_FILE)
    (run.home / "groups.json").write_text(GROUPS_FILE)
    printed: dict[str, str] = {}
    async with filled(nameserver) as values:
        values |= {"broker": broker, "home": str(run.home)}
        # 5.x requires the topic as well.
        values["id_topic"] = "-t Orders" if version.startswith("5") else ""
        for line in COMMANDS.split("\n")[1:-1]:
            name, *words = line.format_map(values).split()
            if name not in known:
                continue
            text = await asyncio.to_thread(run.run, name, *words, "-n", nameserver)
            exported = run.home / f"{name[len('export') :].lower()}.json"
            if name.startswith("export") and exported.exists():
                text += exported.read_text()
                exported.unlink()
            printed[name] = printed.get(name, "") + text
    return printed


_CHANGES: Final = (
    # Java's stack, and the hints below an error.
    (r"\n\s+(at |\.\.\. ).*", ""),
    (r"\nNo broker has registered it: create it, or check that its brokers run\.", ""),
    (r"\n(See|For more information, please visit the url,) [^\s,]+( for further details\.)?", ""),
    (r"MessageTrack \[", r"\n\g<0>"),
    # Values.
    (r"\b(?=\d*[A-F])[0-9A-F]{16,}\b", "ID"),
    (r"(?<![\w.])(/[\w.#%-]+){2,}", "PATH"),
    (r"-?\d[\d.,:]*", "#"),
    (r"# [KMGT]iB\b", "# B"),
    # Rates are empty until there are samples.
    (r"(Tps +: )[# ]*", r"\1#"),
    (r"[ \t]+", " "),
)


_ERROR: Final = re.compile(
    r"^(?:.*Exception: CODE: \d+ +DESC: |Caused by: [\w.]*RuntimeException: )"
    r"(.+?)(?: BROKER: .*)?$",
    re.MULTILINE,
)
"""A broker's answer, or what the tool found missing."""


def shape(text: str) -> set[str]:
    """Return the lines of an output without their values, and each only once."""
    for pattern, replacement in _CHANGES:
        text = re.sub(pattern, replacement, text)
    return {line.strip().rstrip(",") for line in text.splitlines()} - {""}


def cell(name: str, ours: str, theirs: str) -> str:
    """Return how the output of a command compares, as the table says it."""
    mine, other = shape(ours), shape(theirs)
    if mine == other:
        return "same"
    reason = REASONS[name]
    error = _ERROR.search(ours)
    if error is not None and error[1] not in theirs:
        return f"refused: `{error[1].strip()}`; {reason}"
    mine, other = keys(mine), keys(other)
    less, more = other - mine, mine - other
    if len(less) + len(more) > KEYS_NAMED:
        return f"differs in its keys; {reason}"
    parts = [(word, some) for word, some in (("without", less), ("also", more)) if some]
    named = [f" {word} `{'`, `'.join(sorted(some))}`" for word, some in parts]
    return f"differs{','.join(named)}; {reason}"


def keys(lines: set[str]) -> set[str]:
    """Return the keys of the lines ``key : value`` and ``key = value``."""
    return {found[1] for line in lines if (found := re.match(r"(\w+) ?[:=]( |$)", line))}


async def column(version: str, home: Path) -> dict[str, str]:
    """Run the commands of a release; return the table's cell for each."""
    (home / "apache").mkdir()
    with tool(version, home / "tool") as run:
        with testing.broker(settings={"brokerName": "broker-a"}) as here:
            ours = await outputs(run, version, here.nameserver, here.broker)
        with apache(version, home / "apache") as there:
            theirs = await outputs(run, version, there.nameserver, there.broker)
        known = names(run)
    (home / "outputs").mkdir()
    for name in ours:
        (home / "outputs" / f"{name}.ours").write_text(ours[name])
        (home / "outputs" / f"{name}.theirs").write_text(theirs[name])
    cells = {name: cell(name, ours[name], theirs[name]) for name in ours}
    cells |= {name: f"not run: {NOT_RUN[name]}" for name in known if name in NOT_RUN}
    assert set(known) == set(cells)
    return cells


def committed(version: str) -> dict[str, str]:
    """Return a release's column of the table in the docs."""
    return {name: cells[version] for name, cells in _table().items() if cells[version] != "–"}


def _table() -> dict[str, dict[str, str]]:
    section = PAGE.read_text().partition(SECTION)[2]
    rows = re.findall(r"^\| `(\w+)` \| (.*) \| (.*) \|$", section, re.MULTILINE)
    return {name: dict(zip(VERSIONS, cells, strict=True)) for name, *cells in rows}


def update(version: str, cells: Mapping[str, str]) -> None:
    """Rewrite a release's column in the docs."""
    table = _table()
    for name in {*table, *cells}:
        table.setdefault(name, dict.fromkeys(VERSIONS, "–"))[version] = cells.get(name, "–")
    rows = [
        f"| `{name}` | {' | '.join(table[name][one] for one in VERSIONS)} |\n"
        for name in sorted(table, key=str.lower)
        if set(table[name].values()) != {"–"}
    ]
    before, _, section = PAGE.read_text().partition(SECTION)
    head, line, tail = section.partition("|---|---|---|\n")
    assert line
    rest = re.sub(r"\A(\|.*\n)*", "", tail)
    PAGE.write_text(before + SECTION + head + line + "".join(rows) + rest)


if __name__ == "__main__":
    for one in sys.argv[1:] or VERSIONS:
        with tempfile.TemporaryDirectory() as directory:
            update(one, asyncio.run(column(one, Path(directory))))
