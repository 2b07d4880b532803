"""The options of ``rocketmq.store``, and refusals."""

from __future__ import annotations

import pytest

from spark_connector.errors import OptionError
from spark_connector.options import OnDecodeError
from spark_connector.store.options import ScanMode, StoreOptions, store_options


def test_a_path_is_sufficient() -> None:
    found = store_options({"path": "/var/store"})
    assert found == StoreOptions(path="/var/store", broker_name="/var/store")
    assert found.tag_expression is None


def test_every_option_has_its_effect() -> None:
    found = store_options(
        {
            "PATH": "file:///var/store",
            "commitLogPath": "/disk1,/disk2",
            "topics": "A, B",
            "brokerName": "broker-a",
            "scan": "LOG",
            "verifyCrc": "true",
            "decompress": "false",
            "onDecodeError": "raw",
            "filterTags": "x || y",
            "minPartitions": "3",
            "maxRecordsPerPartition": "1000",
            "maxBytesPerPartition": "1m",
        }
    )
    assert found == StoreOptions(
        path="/var/store",
        commit_log_path="/disk1,/disk2",
        topics=("A", "B"),
        broker_name="broker-a",
        scan=ScanMode.LOG,
        verify_crc=True,
        decompress=False,
        on_decode_error=OnDecodeError.RAW,
        tags="x || y",
        min_partitions=3,
        max_records=1000,
        max_bytes=1 << 20,
    )
    assert found.tag_expression is not None
    assert found.tag_expression.tags == {"x", "y"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "the option path of format rocketmq.store is missing; give the store's directory"),
        (
            {"path": "/s", "topik": "A"},
            "the reader of format rocketmq.store has no option 'topik'; did you mean 'topic'",
        ),
        ({"path": "/s", "nameServer": "h:1"}, "a store is read without a broker"),
        ({"path": "/s", "startingOffsets": "earliest"}, "filter by queueOffset or storeTimestamp"),
        (
            {"path": "/s", "scan": "index"},
            "the option scan of format rocketmq.store can't be 'index'; write queue or log",
        ),
        ({"path": "/s", "topic": "a b"}, "a b"),
        ({"path": "/s", "maxRecordsPerPartition": "0"}, "from 1 to"),
        ({"path": "  "}, "it is empty"),
    ],
)
def test_errors_are_reported_with_a_remedy(given: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError) as raised:
        store_options(given)
    assert says in str(raised.value)
