"""Releases and ordinals, as in RocketMQ's own table."""

from __future__ import annotations

import re

import pytest

from remoting.protocol import codes as versions
from remoting.protocol.codes import VERSION, name_of

TABLE = """
V3_0_0_ALPHA1=1 V3_0_0_FINAL=15 V3_0_11=37 V3_1_0=47 V3_2_6=79 V3_4_9=121 V3_5_8=137 V3_6_2=143
V4_0_0=213 V4_1_0=233 V4_2_0=253 V4_3_0=273 V4_3_2=277 V4_4_0=293 V4_5_0=313 V4_5_2=317 V4_6_0=333
V4_6_1=335 V4_7_0=353 V4_7_1=355 V4_8_0=373 V4_9_0=393 V4_9_1=395 V4_9_2=397 V4_9_3=399 V4_9_4=401
V4_9_5=403 V4_9_6=405 V4_9_7=407 V4_9_8=409 V5_0_0=413 V5_1_0=433 V5_1_4=441 V5_2_0=453 V5_3_0=473
V5_3_1=475 V5_3_3=479 V5_4_0=493 HIGHER_VERSION=612
V4_1_0_SNAPSHOT=232 V3_0_6_SNAPSHOT=26 V3_0_7_SNAPSHOT=28 V3_1_8_SNAPSHOT=62 V5_0_0_SNAPSHOT=412
"""
PAIRS = [(name, int(ordinal)) for name, ordinal in re.findall(r"(\w+)=(\d+)", TABLE)]


@pytest.mark.parametrize(("name", "ordinal"), PAIRS)
def test_an_ordinal_has_its_name(name: str, ordinal: int) -> None:
    assert name_of(ordinal) == name


def test_every_ordinal_has_a_name() -> None:
    names = [name_of(ordinal) for ordinal in range(versions.HIGHER_VERSION)]
    assert len(set(names)) == len(names)
    assert name_of(10_000) == "HIGHER_VERSION"
    assert name_of(-1) == "V3 (ordinal -1)"


def test_our_version_is_the_one_we_send() -> None:
    assert name_of(VERSION) == "V4_9_7"
    assert name_of(versions.V4_9_4) == "V4_9_4"
