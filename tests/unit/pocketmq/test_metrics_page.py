"""The names on the metrics page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import pytest

from pocketmq.metrics_page import DROP_REASONS, TLS_FAILURES
from remoting.counters import Counters


@pytest.mark.parametrize(
    ("prefix", "reasons"), [("dropped_", DROP_REASONS), ("tls_failed_", TLS_FAILURES)]
)
def test_every_reason_is_on_the_page(prefix: str, reasons: Sequence[str]) -> None:
    names = [field.name for field in fields(Counters)]
    counted = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
    assert sorted(reasons) == sorted(counted)
