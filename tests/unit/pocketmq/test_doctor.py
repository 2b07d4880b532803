"""The doctor's findings, against scripted servers."""

from __future__ import annotations

from typing import Any

import pytest

from pocketmq.doctor import Case, CheckResult, CheckVerdict, examine
from pocketmq.doctor.case import ACCELERATORS, Machine
from pocketmq.server.probe import NoAnswer
from remoting.protocol.bodies.clients import ConnectionInfo, ConsumerConnection
from remoting.protocol.bodies.route import BrokerData, ClusterInfo, QueueData, TopicRouteData
from remoting.protocol.bodies.stats import ConsumeStats, KVTable, OffsetWrapper
from remoting.protocol.bodies.topic import TopicConfig, TopicConfigSerializeWrapper
from remoting.protocol.codes import RequestCode
from remoting.protocol.own_codes import OwnRequestCode
from remoting.protocol.queue import MessageQueue
from tests.support.clock import ManualClock

DESCRIBE = OwnRequestCode.DESCRIBE_CONSUMER_GROUP
NAME_SERVER = "10.0.0.1:9876"
BROKER = "10.0.0.2:10911"
CLOCK = ManualClock()
RUNNING_MS = ((1 * 24 + 2) * 60 + 3) * 60_000 + 4_500


def runtime(**changes: str) -> KVTable:
    return KVTable(
        table={
            "brokerVersionDesc": "V4_9_7",
            "bootTimestamp": str(CLOCK.now_ms() - RUNNING_MS),
            "runtime": "[ 1 days, 2 hours, 3 minutes, 4 seconds ]",
            "commitLogDiskRatio": "0.5",
            "commitLogDirCapacity": "Total : 2.0 GiB, Free : 1.0 GiB.",
            **changes,
        }
    )


def cluster(address: str = BROKER, *, broker_id: int = 0) -> ClusterInfo:
    data = BrokerData(cluster="c", broker_name="a", broker_addrs={broker_id: address})
    return ClusterInfo(broker_addr_table={"a": data}, cluster_addr_table={"c": ["a"]})


class Servers(dict[tuple[str, int], object]):
    """Scripted answers by address and request; an exception is raised."""

    def ask(self, address: str, code: int, *_: object, **__: object) -> Any:
        answer = self.get((address, code), NoAnswer(f"can't connect to {address}"))
        if isinstance(answer, NoAnswer):
            raise answer
        return answer


MACHINE = Machine("", 1_000_000, frozenset(ACCELERATORS))


@pytest.fixture
def servers() -> Servers:
    """A healthy name server and broker."""
    table = Servers()
    table[NAME_SERVER, RequestCode.GET_BROKER_CLUSTER_INFO] = cluster()
    table[BROKER, RequestCode.GET_BROKER_RUNTIME_INFO] = runtime()
    table[BROKER, DESCRIBE] = NoAnswer("code 3", 3)
    return table


def results(servers: Servers, **case: Any) -> list[CheckResult]:
    given = {"name_servers": [NAME_SERVER], "clock": CLOCK, "machine": MACHINE, **case}
    return list(examine(Case(ask=servers.ask, **given)))


def bad(servers: Servers, **case: Any) -> list[CheckResult]:
    return [one for one in results(servers, **case) if one.verdict is not CheckVerdict.OK]


def test_a_healthy_cluster_has_nothing_to_remedy(servers: Servers) -> None:
    found = results(servers)
    assert [f for f in found if f.verdict is not CheckVerdict.OK] == []
    assert {"version", "interpreter", "name server", "broker", "clock", "disk"} <= {
        f.check for f in found
    }


def test_a_name_server_that_is_down_is_a_failure(servers: Servers) -> None:
    (found,) = bad(servers, name_servers=[NAME_SERVER, "10.0.0.9:9876"])
    assert (found.check, found.verdict) == ("name server", CheckVerdict.FAILED)
    assert "10.0.0.9:9876" in found.found
    assert found.remedy


def test_without_any_name_server_the_checks_end(servers: Servers) -> None:
    servers.clear()
    assert [f.check for f in bad(servers, topic="orders", group="g")] == ["name server"]


def test_name_servers_with_different_brokers_are_found(servers: Servers) -> None:
    other = "10.0.0.3:9876"
    servers[other, RequestCode.GET_BROKER_CLUSTER_INFO] = ClusterInfo()
    (found,) = bad(servers, name_servers=[NAME_SERVER, other])
    assert "10.0.0.3:9876 doesn't list a" in found.found


def test_a_cluster_without_brokers_is_a_failure(servers: Servers) -> None:
    servers[NAME_SERVER, RequestCode.GET_BROKER_CLUSTER_INFO] = ClusterInfo()
    assert [f.found for f in bad(servers)] == ["no broker is registered"]


@pytest.mark.parametrize(
    ("table", "verdict", "words"),
    [
        (
            {"pocketmqReplicationProblem": "no answer", "pocketmqReplicationDiffers": "false"},
            CheckVerdict.FAILED,
            "the slave of a gets no messages: no answer",
        ),
        (
            {"pocketmqReplicationProblem": "it differs", "pocketmqReplicationDiffers": "true"},
            CheckVerdict.FAILED,
            "another store than its master, and gets no messages: it differs",
        ),
        (
            {"pocketmqIdTakenBy": "10.0.0.7:10911"},
            CheckVerdict.FAILED,
            "the broker at 10.0.0.7:10911 registers under the same name and id as a",
        ),
        (
            {"pocketmqReplicationLagBytes": str(2**30)},
            CheckVerdict.WARNING,
            "the slave of a lacks 1024 MiB",
        ),
        (
            {"pocketmqSlaves": "0", "pocketmqBrokerRole": "SYNC_MASTER"},
            CheckVerdict.WARNING,
            "there is one copy of its data, and sends are answered SLAVE_NOT_AVAILABLE",
        ),
        (
            {"pocketmqSlaves": "1", "pocketmqBrokerRole": "SYNC_MASTER"},
            CheckVerdict.OK,
            "when a slave has it",
        ),
        (
            {
                "pocketmqSlaves": "1",
                "pocketmqBrokerRole": "ASYNC_MASTER",
                "pocketmqNotReplicatedBytes": "7",
            },
            CheckVerdict.OK,
            "that no slave has, now 7 bytes; brokerRole=SYNC_MASTER prevents that",
        ),
    ],
)
def test_what_replication_does_not_do_or_protect_is_told(
    servers: Servers, table: dict[str, str], verdict: CheckVerdict, words: str
) -> None:
    servers[BROKER, RequestCode.GET_BROKER_RUNTIME_INFO] = runtime(**table)
    (found,) = [one for one in results(servers) if one.check == "replication"]
    assert found.verdict is verdict
    assert words in found.found
    assert bool(found.remedy) is (verdict is not CheckVerdict.OK)


def test_a_broker_without_a_master_is_a_failure(servers: Servers) -> None:
    servers[NAME_SERVER, RequestCode.GET_BROKER_CLUSTER_INFO] = cluster(broker_id=1)
    assert [f.found for f in bad(servers)] == ["a has no master"]


def test_an_advertised_address_that_does_not_answer_is_a_failure(servers: Servers) -> None:
    del servers[BROKER, RequestCode.GET_BROKER_RUNTIME_INFO]
    (found,) = bad(servers)
    assert f"can't connect to {BROKER}" in found.found
    assert "--advertise" in found.remedy


@pytest.mark.parametrize("address", ["127.0.0.1:10911", "0.0.0.0:10911", "localhost:10911"])
def test_a_loopback_address_is_named_as_the_reason(servers: Servers, address: str) -> None:
    servers[NAME_SERVER, RequestCode.GET_BROKER_CLUSTER_INFO] = cluster(address)
    (found,) = bad(servers)
    assert "the broker's own machine" in found.remedy
    servers[address, RequestCode.GET_BROKER_RUNTIME_INFO] = runtime()
    (found,) = bad(servers)
    assert (found.check, found.verdict) == ("advertised address", CheckVerdict.WARNING)


def test_a_broker_that_refuses_is_distinguished_from_one_that_is_away(servers: Servers) -> None:
    servers[BROKER, RequestCode.GET_BROKER_RUNTIME_INFO] = NoAnswer("code 2: starting", 2)
    assert "its log" in bad(servers)[0].remedy


@pytest.mark.parametrize(("off_ms", "word"), [(60_000, "ahead of"), (-60_000, "behind")])
def test_a_clock_that_differs_is_a_warning(servers: Servers, off_ms: int, word: str) -> None:
    boot = str(CLOCK.now_ms() - RUNNING_MS + off_ms)
    servers[BROKER, RequestCode.GET_BROKER_RUNTIME_INFO] = runtime(bootTimestamp=boot)
    (found,) = bad(servers)
    assert found.found == f"a's is 60 s {word} this machine's"


@pytest.mark.parametrize(
    ("used", "verdicts"),
    [
        ("0.75", []),
        ("0.76", [CheckVerdict.WARNING]),
        ("0.90", [CheckVerdict.WARNING]),
        ("0.91", [CheckVerdict.FAILED]),
        ("", []),
    ],
)
def test_a_disk_that_fills_is_noticed(
    servers: Servers, used: str, verdicts: list[CheckVerdict]
) -> None:
    servers[BROKER, RequestCode.GET_BROKER_RUNTIME_INFO] = runtime(
        commitLogDiskRatio=used, runtime="?"
    )
    assert [f.verdict for f in bad(servers)] == verdicts


def test_a_store_that_refuses_or_deletes_too_early_is_noticed(servers: Servers) -> None:
    servers[BROKER, RequestCode.GET_BROKER_RUNTIME_INFO] = runtime(
        pocketmqWhyNotWritable="the disk of /data is 91% full",
        pocketmqLogFilesDeletedYoung="3",
        pocketmqFilesNotDeleted="1",
    )
    assert [(f.check, f.verdict) for f in bad(servers)] == [
        ("store", CheckVerdict.FAILED),
        ("retention", CheckVerdict.WARNING),
        ("retention", CheckVerdict.WARNING),
    ]
    assert "a takes no messages: the disk of /data is 91% full" in bad(servers)[0].found
    assert "deleted unexpired files because the disk was too full: 3" in bad(servers)[1].found


def test_damaged_messages_are_reported_with_a_remedy(servers: Servers) -> None:
    servers[BROKER, RequestCode.GET_BROKER_RUNTIME_INFO] = runtime(
        pocketmqDamagedMessages="2", pocketmqStorePath="/data"
    )
    (found,) = bad(servers)
    assert (found.check, found.verdict) == ("damage", CheckVerdict.FAILED)
    assert found.found == "a does not deliver damaged messages: 2"
    assert "'pocketmq store verify /data', restore the store from a copy" in found.remedy


@pytest.mark.parametrize(
    ("limit", "taken", "verdict"),
    [
        ("65536", "100", CheckVerdict.OK),
        ("1024", "100", CheckVerdict.WARNING),
        ("65536", "9500", "warning"),
    ],
)
def test_connections_that_are_or_will_be_refused_are_noticed(
    servers: Servers, limit: str, taken: str, verdict: str
) -> None:
    servers[BROKER, RequestCode.GET_BROKER_RUNTIME_INFO] = runtime(
        pocketmqDescriptorLimit=limit, pocketmqConnections=taken, pocketmqConnectionsMax="10000"
    )
    (found,) = [f for f in results(servers) if f.check == "connections"]
    assert found.verdict == verdict
    assert f"{taken} of at most 10000 connections, with {limit} file descriptors" in found.found


def test_refusals_by_quotas_and_quotas_of_unknown_topics_are_reported(servers: Servers) -> None:
    key = BROKER, RequestCode.GET_BROKER_RUNTIME_INFO
    servers[key] = runtime(pocketmqQuotaRefusals="0", pocketmqQuotasWithoutTopic="")
    assert "quotas" not in {one.check for one in bad(servers)}
    servers[key] = runtime(pocketmqQuotaRefusals="7", pocketmqQuotasWithoutTopic="ordres")
    assert [one.found for one in bad(servers) if one.check == "quotas"] == [
        "a has refused sends and pulls above a quota since it started: 7",
        "a has quotas for topics that don't exist: ordres",
    ]


@pytest.mark.parametrize(
    ("days", "problem", "found"),
    [
        ("14", "", ["a's certificate is valid for 14 days"]),
        ("13", "", ["a's certificate expires in 13 days"]),
        ("-1", "", ["a's certificate has expired"]),
        (
            "30",
            "mismatch",
            [
                "a still uses its files from before: mismatch",
                "a's certificate is valid for 30 days",
            ],
        ),
    ],
)
def test_a_certificate_to_replace_is_reported(
    servers: Servers, days: str, problem: str, found: list[str]
) -> None:
    servers[BROKER, RequestCode.GET_BROKER_RUNTIME_INFO] = runtime(
        pocketmqTlsDaysLeft=days, pocketmqTlsProblem=problem
    )
    checks = [one for one in results(servers) if one.check == "TLS"]
    assert [one.found for one in checks] == found
    is_good = not problem and days == "14"
    assert is_good == (not [one for one in bad(servers) if one.check == "TLS"])


@pytest.mark.parametrize(("age_ms", "count"), [(0, 0), (60_000, 0), (600_000, 1)])
def test_transactions_that_nobody_ends_are_reported(
    servers: Servers, age_ms: int, count: int
) -> None:
    servers[BROKER, RequestCode.GET_BROKER_RUNTIME_INFO] = runtime(
        pocketmqTransactionsOpen="3",
        pocketmqTransactionsOldestMs=str(age_ms and CLOCK.now_ms() - age_ms),
        pocketmqTransactionsDiscarded="0",
        pocketmqTransactionChecksWithoutProducer="7",
    )
    found = bad(servers)
    assert [one.found for one in found] == count * [
        "a has 3 open transactions, the oldest for 600 s; checks that found no producer: 7"
    ]


def test_discarded_transactions_are_reported(servers: Servers) -> None:
    servers[BROKER, RequestCode.GET_BROKER_RUNTIME_INFO] = runtime(
        pocketmqTransactionsOpen="0",
        pocketmqTransactionsOldestMs="0",
        pocketmqTransactionsDiscarded="2",
        pocketmqTransactionChecksWithoutProducer="0",
    )
    (found,) = bad(servers)
    assert found.found == "a has discarded half messages that no producer ended: 2"
    assert "TRANS_CHECK_MAX_TIME_TOPIC" in found.remedy


def test_restored_entries_are_reported(servers: Servers) -> None:
    servers[BROKER, RequestCode.GET_BROKER_RUNTIME_INFO] = runtime(
        pocketmqRestoredEntries="3", pocketmqStorePath="/data"
    )
    (found,) = bad(servers)
    assert (found.check, found.verdict) == ("damage", CheckVerdict.WARNING)
    assert found.found == "a has restored damaged entries of consume queues from the log: 3"
    assert "check the disk; look for more with 'pocketmq store verify /data'" in found.remedy


def test_lost_offsets_damage_and_a_broken_index_are_reported(servers: Servers) -> None:
    asked = BROKER, RequestCode.GET_BROKER_RUNTIME_INFO
    servers[asked] = runtime(
        pocketmqOffsetsLost="true",
        pocketmqRecoverySteppedOver="2",
        pocketmqIndexBacklogBytes="0",
        pocketmqIndexTrouble="the index /data/index can't be written",
    )
    assert [(f.check, f.verdict) for f in bad(servers)] == [
        ("offsets", CheckVerdict.FAILED),
        ("store", CheckVerdict.WARNING),
        ("index", CheckVerdict.WARNING),
    ]
    assert "no config/consumerOffset.json" in bad(servers)[0].found
    assert "2 damaged places" in bad(servers)[1].found
    assert "/data/index can't be written" in bad(servers)[2].found

    servers[asked] = runtime(pocketmqIndexBacklogBytes=str(300 << 20))
    assert ["300 MiB behind" in f.found for f in bad(servers)] == [True]
    servers[asked] = runtime(
        pocketmqOffsetsLost="false",
        pocketmqRecoverySteppedOver="0",
        pocketmqIndexBacklogBytes=str(40 << 20),
    )
    assert bad(servers) == []


def test_a_topic_is_checked_on_request(servers: Servers) -> None:
    code = RequestCode.GET_ROUTEINFO_BY_TOPIC
    servers[NAME_SERVER, code] = NoAnswer("code 17", 17)
    (found,) = bad(servers, topic="orders")
    assert found.remedy == "pocketmq topic create orders"
    servers[NAME_SERVER, code] = NoAnswer("code 1", 1)
    assert bad(servers, topic="orders")[0].found == "code 1"
    servers[NAME_SERVER, code] = TopicRouteData(
        queue_datas=[QueueData(broker_name="a", read_queue_nums=4, write_queue_nums=4, perm=4)]
    )
    (found,) = bad(servers, topic="orders")
    assert found.found == "no queue of orders to write to"


def test_a_group_that_is_not_there_is_a_warning(servers: Servers) -> None:
    servers[BROKER, RequestCode.GET_CONSUMER_CONNECTION_LIST] = NoAnswer("code 206", 206)
    servers[BROKER, RequestCode.GET_CONSUME_STATS] = ConsumeStats()
    assert [f.found for f in bad(servers, group="g")] == [
        "g has no member online",
        f"{BROKER} has no committed offset of g",
    ]


def test_a_group_ahead_of_its_queues_is_a_failure(servers: Servers) -> None:
    queue = MessageQueue("orders", "a", 0)
    servers[BROKER, RequestCode.GET_CONSUMER_CONNECTION_LIST] = ConsumerConnection(
        connection_set=[ConnectionInfo(client_id="x")]
    )
    servers[BROKER, RequestCode.GET_CONSUME_STATS] = ConsumeStats(
        offset_table={queue: OffsetWrapper(broker_offset=5, consumer_offset=9)}
    )
    (found,) = bad(servers, group="g")
    assert "ahead of what orders/a/0 hold" in found.found


def test_a_brokers_refusal_to_describe_a_group_is_reported(servers: Servers) -> None:
    servers[BROKER, RequestCode.GET_CONSUMER_CONNECTION_LIST] = NoAnswer("code 1", 1)
    servers[BROKER, RequestCode.GET_CONSUME_STATS] = NoAnswer("code 3", 3)
    assert {f.found for f in bad(servers, group="g")} == {
        "code 1",
        "g has no member online",
        "code 3",
    }


def test_few_file_descriptors_and_a_missing_accelerator_are_warnings(servers: Servers) -> None:
    found = bad(servers, machine=Machine("", 1024, frozenset()))
    assert [f.check for f in found] == ["accelerator"] * 3 + ["file descriptors"]
    assert "only 1024" in found[-1].found
    assert "ulimit -Hn" in found[-1].remedy


@pytest.mark.parametrize(
    ("why", "remedy"),
    [("POCKETMQ_PURE is set", "unset it"), ("the modules were not built", "install a C compiler")],
)
def test_a_core_that_is_not_compiled_is_a_warning(servers: Servers, why: str, remedy: str) -> None:
    table = runtime().table | {"pocketmqCore": "python", "pocketmqWhyNotCompiled": why}
    servers[BROKER, RequestCode.GET_BROKER_RUNTIME_INFO] = KVTable(table=table)
    machine = MACHINE._replace(why_not_compiled=why)
    here, there = (one for one in results(servers, machine=machine) if one.check == "core")
    for one in (here, there):
        assert one.verdict is CheckVerdict.WARNING
        assert why in one.found
        assert one.remedy.startswith(remedy)


@pytest.mark.parametrize(("said", "checks"), [("true", ["access"]), ("false", []), ("", [])])
def test_a_broker_that_everybody_may_use_is_a_warning(
    servers: Servers, said: str, checks: list[str]
) -> None:
    servers[BROKER, RequestCode.GET_BROKER_RUNTIME_INFO] = runtime(pocketmqOpenToNetwork=said)
    assert [f.check for f in bad(servers)] == checks


def two_brokers(servers: Servers, a: list[str], b: list[str], cluster_of_b: str = "c") -> None:
    """Let two masters have these topics."""
    other = "10.0.0.3:10911"
    brokers = {
        "a": BrokerData(cluster="c", broker_name="a", broker_addrs={0: BROKER}),
        "b": BrokerData(cluster=cluster_of_b, broker_name="b", broker_addrs={0: other}),
    }
    servers[NAME_SERVER, RequestCode.GET_BROKER_CLUSTER_INFO] = ClusterInfo(brokers)
    servers[other, RequestCode.GET_BROKER_RUNTIME_INFO] = runtime()
    servers[other, DESCRIBE] = NoAnswer("code 3", 3)
    for address, topics in ((BROKER, a), (other, b)):
        table = {topic: TopicConfig(topic_name=topic) for topic in topics}
        servers[address, RequestCode.GET_ALL_TOPIC_CONFIG] = TopicConfigSerializeWrapper(table)


def test_a_topic_at_some_brokers_of_a_cluster_only_is_a_warning(servers: Servers) -> None:
    two_brokers(servers, ["both", "orders", "a", "%RETRY%g"], ["both", "b", "c", "TBW102"])
    (found,) = bad(servers)
    assert (found.check, found.verdict) == ("spread", CheckVerdict.WARNING)
    assert found.found == "topic orders of cluster c is at a, but not at b"
    assert "pocketmq topic update orders --everywhere" in found.remedy


def test_brokers_of_other_clusters_need_not_have_a_topic(servers: Servers) -> None:
    two_brokers(servers, ["orders"], [], cluster_of_b="d")
    assert bad(servers) == []


def test_of_many_topics_at_one_broker_some_are_named(servers: Servers) -> None:
    two_brokers(servers, [f"t{number}" for number in range(8)], [])
    *named, rest = bad(servers)
    assert len(named) == 5
    assert rest.found == "3 more topics of cluster c are at some of its brokers only"
    two_brokers(servers, ["other", *(f"t{number}" for number in range(8))], [])
    servers[NAME_SERVER, RequestCode.GET_ROUTEINFO_BY_TOPIC] = TopicRouteData(
        queue_datas=[QueueData(broker_name="a", read_queue_nums=1, write_queue_nums=1, perm=6)]
    )
    (found,) = bad(servers, topic="t7")
    assert "topic t7" in found.found


def test_a_broker_that_does_not_list_its_topics_is_left_out(servers: Servers) -> None:
    two_brokers(servers, ["orders"], [])
    del servers[BROKER, RequestCode.GET_ALL_TOPIC_CONFIG]
    assert bad(servers) == []


@pytest.mark.parametrize(
    ("table", "verdict", "words"),
    [
        ({"pocketmqGroupProblem": "no controller knows"}, CheckVerdict.FAILED, "no controller"),
        ({"pocketmqInSync": "1,2"}, CheckVerdict.WARNING, "with one less it takes no messages"),
        ({"pocketmqInSync": "1,2,3"}, CheckVerdict.OK, "3 replicas in sync, in epoch 7"),
    ],
)
def test_a_group_that_has_no_controller_or_too_few_replicas_is_told(
    servers: Servers, table: dict[str, str], verdict: CheckVerdict, words: str
) -> None:
    group = {"pocketmqSlaves": "1", "pocketmqEpoch": "7", "pocketmqMinInSync": "2"}
    servers[BROKER, RequestCode.GET_BROKER_RUNTIME_INFO] = runtime(**group, **table)
    (found,) = [one for one in results(servers) if one.check == "group"]
    assert found.verdict is verdict
    assert words in found.found
