"""Releases and their ordinals, which every frame carries (cf. MQVersion).

``4.x.y`` is 213 + 20x + 2y and ``5.x.y`` is 413 + 20x + 2y, x and y from 0 to 9; the number before
a release is its SNAPSHOT. 3.x follows no rule: the table has those that matter.
"""

from __future__ import annotations

import re
from typing import Final

HIGHER_VERSION: Final = 612
"""What every ordinal beyond the table stands for."""

V3_0_7_SNAPSHOT: Final = 28
"""Clients from here on serve offset resets and status questions from the broker."""

V3_0_11: Final = 37
"""Brokers from here on register with topics and filter servers in one body."""

V3_1_8_SNAPSHOT: Final = 62
"""Clients from here on tell their running state and consume a message on demand."""

V3_4_9: Final = 121
"""Consumers from here on say how often a message is tried (``maxReconsumeTimes``)."""

V4_9_4: Final = 401
"""Clients from here on get routes in standard JSON without asking."""

_FIRST_OF_4: Final = 213
_FIRST_OF_5: Final = 413
_PER_MINOR: Final = 20
_PER_PATCH: Final = 2

_RELEASES_OF_3: Final = {
    1: "V3_0_0_ALPHA1",
    15: "V3_0_0_FINAL",
    26: "V3_0_6_SNAPSHOT",
    28: "V3_0_7_SNAPSHOT",
    37: "V3_0_11",
    47: "V3_1_0",
    62: "V3_1_8_SNAPSHOT",
    79: "V3_2_6",
    121: "V3_4_9",
    137: "V3_5_8",
    143: "V3_6_2",
}
_RELEASE: Final = re.compile(r"([45])\.([0-9])\.([0-9])")


def ordinal_of(release: str) -> int:
    """The ordinal of a release such as ``4.9.7``. Raises ``ValueError`` for others than 4 and 5."""
    match = _RELEASE.fullmatch(release)
    if match is None:
        raise ValueError(f"{release!r} is not a release 4.x.y or 5.x.y")
    major, minor, patch = (int(part) for part in match.groups())
    first = _FIRST_OF_4 if major == 4 else _FIRST_OF_5
    return first + _PER_MINOR * minor + _PER_PATCH * patch


def name_of(ordinal: int) -> str:
    """The release's name as RocketMQ shows it, such as ``V4_9_7``."""
    if ordinal >= HIGHER_VERSION:
        return "HIGHER_VERSION"
    if ordinal < _FIRST_OF_4 - 1:
        return _RELEASES_OF_3.get(ordinal, f"V3 (ordinal {ordinal})")
    major, first = (5, _FIRST_OF_5) if ordinal >= _FIRST_OF_5 - 1 else (4, _FIRST_OF_4)
    half_steps = ordinal - first + 1
    minor, rest = divmod(half_steps, _PER_MINOR)
    patch, is_release = divmod(rest, _PER_PATCH)
    return f"V{major}_{minor}_{patch}" + ("" if is_release else "_SNAPSHOT")
