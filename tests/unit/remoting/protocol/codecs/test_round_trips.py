"""A command encoded by a codec is decoded to the same command."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.codecs import json as json_codec
from remoting.protocol.codecs import msgpack as msgpack_codec
from remoting.protocol.codecs import rocketmq as rocketmq_codec
from remoting.protocol.codes import Language, SerializeType
from remoting.protocol.command import Command

INT16 = st.integers(-(1 << 15), (1 << 15) - 1)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
TEXT = st.text(max_size=20)
PAIRS = st.lists(st.tuples(TEXT, TEXT), max_size=12)
UNIQUE_PAIRS = st.dictionaries(TEXT, TEXT, max_size=12).map(lambda d: tuple(d.items()))
LANGUAGES = st.sampled_from(Language)
SCALARS = st.none() | st.booleans() | INT64 | TEXT | st.floats(allow_nan=False)


@given(
    st.builds(
        Command,
        code=INT32,
        opaque=INT32,
        flag=INT32,
        language=LANGUAGES,
        version=INT32,
        remark=st.none() | TEXT,
        pairs=st.none() | UNIQUE_PAIRS,
    )
)
def test_json(command: Command) -> None:
    assert json_codec.decode_header(json_codec.encode_header(command)) == command


@given(
    st.builds(
        Command,
        code=INT16.filter(lambda code: code not in {*range(3442, 3449), 3543}),
        opaque=INT32,
        flag=INT32,
        language=LANGUAGES,
        version=INT16,
        remark=st.none() | st.text(min_size=1, max_size=20),
        pairs=st.none() | PAIRS.filter(bool).map(tuple),
        serialize=st.just(SerializeType.ROCKETMQ),
    )
)
def test_rocketmq_keeps_order_and_repeats(command: Command) -> None:
    encoded = rocketmq_codec.encode_header(command)
    assert rocketmq_codec.decode_header(encoded) == command
    assert rocketmq_codec.encode_header(rocketmq_codec.decode_header(encoded)) == encoded


@given(
    st.builds(
        Command,
        code=INT32,
        opaque=INT32,
        flag=INT32,
        language=st.none() | LANGUAGES,
        version=INT32,
        remark=st.none() | TEXT,
        pairs=st.none() | UNIQUE_PAIRS,
        values=st.none() | st.lists(SCALARS, max_size=20).map(tuple),
        serialize=st.just(SerializeType.MSGPACK),
    )
)
def test_msgpack(command: Command) -> None:
    assert msgpack_codec.decode_header(msgpack_codec.encode_header(command)) == command
