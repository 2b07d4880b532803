"""The table of delay levels, and the level that a message requests."""

from __future__ import annotations

import pytest

from broker.config import DEFAULT_LEVELS, BrokerConfig, parse_levels
from broker.delivery.schedule import level_for, level_of
from broker.store.config import DEFAULT_DELAY_LEVELS_MS
from remoting.runtime.settings import ConfigError


def test_the_default_levels_are_the_stores() -> None:
    assert parse_levels(DEFAULT_LEVELS) == DEFAULT_DELAY_LEVELS_MS
    assert BrokerConfig().delay_levels_ms == DEFAULT_DELAY_LEVELS_MS


def test_every_unit_is_known() -> None:
    assert parse_levels(" 1s  2m 3h 4d ") == (1000, 120_000, 10_800_000, 345_600_000)


@pytest.mark.parametrize(
    "text",
    ["", "1", "s", "1s,2s", "1s 2x", "-1s", "1.5s", "0s", "366d", "9" * 30 + "s", "1s " * 65],
)
def test_an_invalid_table_of_levels_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="messageDelayLevel"):
        BrokerConfig.from_sources(None, {}, {"messageDelayLevel": text})


def test_the_configuration_shows_the_levels_as_they_were_given() -> None:
    config = BrokerConfig.from_sources(None, {}, {"messageDelayLevel": "1s 2s"})
    assert config.as_properties()["messageDelayLevel"] == "1s 2s"
    assert config.delay_levels_ms == (1000, 2000)


@pytest.mark.parametrize(
    ("text", "level"),
    [(b"", 0), (b"DELAY\x013", 3), (b"A\x01b\x02DELAY\x01+4\x02", 4), (b"DELAY\x01-1", -1)],
)
def test_a_messages_delay_property_is_its_level(text: bytes, level: int) -> None:
    assert level_of(text) == level


@pytest.mark.parametrize("value", [b"x", b"1 ", b"1_0", b"\xd9\xa1", b"99999999999"])
def test_a_level_that_is_no_number_is_an_error(value: bytes) -> None:
    with pytest.raises(ValueError, match="DELAY"):
        level_of(b"DELAY\x01" + value)


@pytest.mark.parametrize(
    ("wait_ms", "level"),
    [(-5, 1), (0, 1), (1000, 1), (1001, 2), (7000, 3), (7_200_000, 18), (2**80, 18)],
)
def test_a_wait_is_rounded_up_to_a_level(wait_ms: int, level: int) -> None:
    assert level_for(wait_ms, DEFAULT_DELAY_LEVELS_MS) == level


def test_levels_need_no_order() -> None:
    assert [level_for(ms, (9000, 1000, 5000)) for ms in (1, 2000, 6000, 10_000)] == [2, 3, 1, 1]
