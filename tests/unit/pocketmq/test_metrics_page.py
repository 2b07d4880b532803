"""The names on the metrics page."""

from __future__ import annotations

from dataclasses import fields

from pocketmq.metrics_page import DROP_REASONS
from remoting.counters import Counters


def test_every_reason_to_drop_a_peer_is_on_the_page() -> None:
    counted = [field.name.removeprefix("dropped_") for field in fields(Counters)]
    assert set(DROP_REASONS) == {
        name for name, field in zip(counted, fields(Counters), strict=True) if name != field.name
    }
