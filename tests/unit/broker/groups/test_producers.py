"""Producer groups: their members, and when these expire."""

from __future__ import annotations

import pytest

from broker.errors import LimitReached
from broker.groups.producers import CLIENT_EXPIRY_MS, ClientChannel, ProducerTable


def channel(connection: str, now_ms: int = 0) -> ClientChannel:
    return ClientChannel(connection, f"id-{connection}", "1.2.3.4:5", "JAVA", 407, now_ms)


def test_a_heartbeat_joins_and_a_second_one_refreshes():
    table = ProducerTable()
    table.register("g", channel("c1"))
    table.register("g", channel("c1", 5))
    assert table.groups["g"]["c1"].last_update_ms == 5
    assert len(table) == 1


def test_leaving_forgets_an_empty_group():
    table = ProducerTable()
    table.register("g", channel("c1"))
    assert table.unregister("g", "c1")
    assert not table.unregister("g", "c1")
    assert table.groups == {}
    assert len(table) == 0


def test_a_closed_connection_leaves_all_groups():
    table = ProducerTable()
    table.register("g", channel("c1"))
    table.register("h", channel("c1"))
    table.register("h", channel("c2"))
    table.closed("c1")
    table.closed("unknown")
    assert set(table.groups) == {"h"}
    assert len(table) == 1


def test_a_silent_client_expires_after_120_seconds():
    table = ProducerTable()
    table.register("g", channel("c1", 0))
    table.register("g", channel("c2", 1))
    assert table.scan(CLIENT_EXPIRY_MS) == []
    assert table.scan(CLIENT_EXPIRY_MS + 1) == ["c1"]
    assert set(table.groups["g"]) == {"c2"}


def test_memberships_are_bounded():
    table = ProducerTable(limit=1)
    table.register("g", channel("c1"))
    with pytest.raises(LimitReached, match="at most 1 memberships"):
        table.register("h", channel("c1"))
    assert "h" not in table.groups
    table.register("g", channel("c1", 9))
