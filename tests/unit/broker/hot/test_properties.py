"""The properties text that is stored is the one that the general path makes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.hot.properties import stored
from remoting.protocol.message import properties
from remoting.protocol.message.tags import tags_code_of

CLUSTER = b"CLUSTER\x01c"
pieces = st.sampled_from(
    [
        "WAIT",
        "\x01",
        "\x02",
        "true",
        "false",
        "TAGS",
        "A",
        "WAIT\x01true",
        "\x02WAIT\x01true\x02",
        "ß",
    ]
)


@given(st.lists(pieces, max_size=12).map("".join))
def test_it_is_that_of_the_functions_on_properties(sent: str) -> None:
    text = sent.encode()
    value = properties.find(text, b"WAIT")
    kept = properties.join(properties.remove(text, b"WAIT"), CLUSTER)
    waits = value is None or value.lower() == b"true"
    assert stored(sent, CLUSTER) == (kept, waits, tags_code_of(kept))


def test_what_asks_for_delay_a_timer_or_a_transaction_is_left_to_the_general_path() -> None:
    for timer in ("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"):
        assert stored(f"A\x01b\x02{timer}\x013", CLUSTER) is None
    assert stored("A\x01b\x02DELAY\x013", CLUSTER) is None
    assert stored("TRAN_MSG\x01true", CLUSTER) is None
    assert stored("A\x01" + "b" * 32_767, CLUSTER) is None
