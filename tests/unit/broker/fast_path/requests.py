"""Requests of clients as frames, common and unusual ones."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from struct import pack
from typing import Any

from hypothesis import strategies as st
from msgpack import packb

from remoting.protocol.codes import SerializeType
from remoting.protocol.command import Header, wire_names_of
from remoting.protocol.errors import FrameError
from remoting.protocol.frame import cut, decode
from remoting.protocol.headers.pull import (
    PullMessageRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from remoting.protocol.headers.send import SendMessageRequestHeader, SendMessageRequestHeaderV2
from remoting.protocol.message import batch
from remoting.protocol.signing import Credentials, signature, signed_content
from tests.unit.broker.fast_path.paths import frame, frames

TOPICS = ["plain", "plain", "plain", "wide", "other", "multi", "ordered", "closed"]
ODD_TOPICS = ["unknown", "SCHEDULE_TOPIC_XXXX", "%RETRY%g", "bad name", "", "x" * 128, "TBW102"]

numbers = st.sampled_from(["0", "0", "0", "1", "2", "3"])
odd_numbers = st.sampled_from(
    [
        "",
        "-1",
        "+1",
        "007",
        " 1",
        "1_0",
        "٣",
        "\U0001d7d9",
        "x",
        "2147483648",
        "99999999999999999999",
        "4",
        "8",
    ]
)
booleans = st.sampled_from(["false", "0", "true", "TRUE", "1", "yes", "", " true"])
odd_values = st.sampled_from(
    ["0", "3", "01", "1.5", "true", "null", "{}", "[1]", '"\\u0030"', '"1"', "1e3"]
)


def quoted(text: str) -> str:
    return json.dumps(text)


@st.composite
def properties(draw: st.DrawFn) -> str:
    """A properties text, mostly as a client writes it."""
    entries = draw(
        st.lists(
            st.sampled_from(
                [
                    *("UNIQ_KEY\x017F0000010001", "WAIT\x01true", "WAIT\x01true", "TAGS\x01A"),
                    *("TAGS\x01B", "TAGS\x01", "KEYS\x01k1 k2", "XWAIT\x01true", "WAIT\x01false"),
                    *("WAIT\x01TRUE", "WAIT\x01", "WAIT", "DELAY\x010", "DELAY\x013", "DELAY\x01x"),
                    *(
                        "TRAN_MSG\x01true",
                        "TRAN_MSG\x01false",
                        "CLUSTER\x01c",
                        "ü\x01ß",
                        "\x01",
                        "",
                    ),
                    *("TIMER_DELAY_SEC\x015", "TIMER_DELAY_MS\x015", "TIMER_DELIVER_MS\x015"),
                    *("TIMER_OUT_MS\x015", "a\x01TIMER_DELAY_SEC", "XTIMER_DELAY_MS\x015"),
                    *("a\x01TAGS\x01A", 'q\x01"\\', "WAIT\x01truer", "k\x01" + "v" * 300),
                    *("k\x01" + "\0" * 511, "k\x01" + "\0" * 512),
                ]
            ),
            max_size=5,
        )
    )
    return "\x02".join(entries) + draw(st.sampled_from(["", "", "\x02"]))


@st.composite
def send_fields(draw: st.DrawFn) -> dict[str, str]:
    """The ext fields of a send, name and JSON value."""
    odd = draw(st.integers(0, 3)) == 0
    topic = draw(st.sampled_from(ODD_TOPICS if odd and draw(st.booleans()) else TOPICS))
    fields = {
        "a": quoted(draw(st.sampled_from(["pg", "", "ü"]))),
        "b": quoted(topic),
        "c": quoted("TBW102"),
        "d": quoted("4"),
        "e": quoted(draw(numbers)),
        "f": quoted(draw(st.sampled_from(["0", "0", "1", "16", "32"]))),
        "g": quoted(draw(st.sampled_from(["1700000000123", "1700000000124"]))),
        "h": quoted(draw(numbers)),
        "i": quoted(draw(properties())),
        "j": quoted(draw(numbers)),
        "k": quoted(draw(booleans)),
        "m": quoted(draw(st.sampled_from(["false", "false", "0"]))),
    }
    if odd:
        name = draw(st.sampled_from("bdefghjklm"))
        fields[name] = draw(st.one_of(odd_numbers.map(quoted), odd_values))
    if draw(st.integers(0, 9)) == 0:
        fields.pop(draw(st.sampled_from(sorted(fields))))
    return fields


LONG_NAMES = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "k": "unitMode",
    "l": "maxReconsumeTimes",
    "m": "batch",
}


@st.composite
def header(draw: st.DrawFn, code: int, fields: dict[str, str], opaque: int) -> bytes:
    """A JSON header, mostly in the usual order and form."""
    pairs = list(fields.items())
    top: list[tuple[str, Any]] = [
        ("code", str(code)),
        ("extFields", pairs),
        ("flag", draw(st.sampled_from(["0", "0", "0", "2"]))),
        ("language", quoted("JAVA")),
        ("opaque", str(opaque)),
        ("serializeTypeCurrentRPC", quoted("JSON")),
        ("version", "407"),
    ]
    space = ""
    oddity = draw(st.integers(0, 9))
    if oddity == 0:
        pairs[:] = draw(st.permutations(pairs))
        top[1:] = draw(st.permutations(top[1:]))
    elif oddity == 1 and pairs:
        name, value = draw(st.sampled_from(pairs))
        pairs.insert(
            draw(st.integers(0, len(pairs))), (name, draw(st.one_of(st.just(value), odd_values)))
        )
    elif oddity == 2:
        pairs.append((draw(st.sampled_from(["zz", "bname", "A"])), draw(st.one_of(odd_values))))
    elif oddity == 3:
        extra = draw(
            st.sampled_from(
                [
                    *(("remark", "null"), ("remark", '"r"'), ("remark", "1"), ("zz", "[[]]")),
                    *(("flag", "2"), ("flag", "1"), ("flag", "false"), ("opaque", "1.0")),
                    *(
                        ("opaque", "null"),
                        ("language", "3"),
                        ("language", "null"),
                        ("version", "-1"),
                    ),
                    *(("opaque", "2147483648"), ("code", "11"), ("code", str(code))),
                ]
            )
        )
        top.insert(draw(st.integers(0, len(top))), extra)
    elif oddity == 4:
        space = " "
    elif oddity == 5:
        top = draw(st.permutations(top))

    def text(members: list[tuple[str, Any]]) -> str:
        parts = [
            f'"{name}":{space}{text(value) if isinstance(value, list) else value}'
            for name, value in members
        ]
        return "{" + ",".join(parts) + "}"

    return text(top).encode()


@st.composite
def request(
    draw: st.DrawFn, code: int, fields: dict[str, str], opaque: int, body: bytes = b""
) -> bytes:
    """A frame in any codec; ``fields`` are the ext fields, name and JSON value."""
    codec = draw(st.sampled_from([*[SerializeType.JSON] * 3, *SerializeType]))
    if codec is SerializeType.JSON:
        return frame(draw(header(code, fields, opaque)), body)
    flag = draw(st.sampled_from([0, 0, 0, 2, 1]))
    texts = {name: as_text(value) for name, value in fields.items()}
    if codec is SerializeType.ROCKETMQ:
        return frame(draw(binary_header(code, texts, opaque, flag)), body, codec)
    return frame(draw(msgpack_header(code, texts, opaque, flag)), body, codec)


def as_text(value: str) -> str:
    return json.loads(value) if value.startswith('"') else value


@st.composite
def binary_header(
    draw: st.DrawFn, code: int, fields: dict[str, str], opaque: int, flag: int
) -> bytes:
    """A header of RocketMQ's own codec, now and then a damaged one."""
    pairs = [(name.encode(), value.encode()) for name, value in fields.items()]
    oddity = draw(st.integers(0, 9))
    if oddity == 0:
        pairs = draw(st.permutations(pairs))
    elif oddity == 1 and pairs:
        pairs.append((draw(st.sampled_from(pairs))[0], draw(st.sampled_from([b"1", b"", b"\xff"]))))
    elif oddity == 2:
        pairs.append((draw(st.sampled_from([b"zz", b"bname", b"\xff", b""])), b"1"))
    text = b"".join(pack(">H", len(k)) + k + pack(">I", len(v)) + v for k, v in pairs)
    remark = draw(st.sampled_from([b"", b"", b"", b"r"]))
    head = pack(">HBHii", code, draw(st.sampled_from([0, 1, 9, 99])), 407, opaque, flag)
    whole = head + pack(">I", len(remark)) + remark + pack(">I", len(text)) + text
    if oddity == 3:
        at = draw(st.integers(0, len(whole) - 1))
        whole = whole[:at] + draw(st.binary(min_size=1, max_size=1)) + whole[at + 1 :]
    elif oddity == 4:
        whole = whole[: draw(st.integers(0, len(whole)))]
    return whole


HEADERS: dict[int, type[Header]] = {
    10: SendMessageRequestHeader,
    310: SendMessageRequestHeaderV2,
    320: SendMessageRequestHeaderV2,
    11: PullMessageRequestHeader,
    361: PullMessageRequestHeader,
    15: UpdateConsumerOffsetRequestHeader,
}


@st.composite
def msgpack_header(
    draw: st.DrawFn, code: int, fields: dict[str, str], opaque: int, flag: int
) -> bytes:
    """A header of our own codec, now and then with values of other types, or damaged."""
    values: list[Any] = []
    for name in wire_names_of(HEADERS[code]):
        text = fields.get(name)
        if text is None or name in TEXTS:
            values.append(text)
        elif name in {"k", "m", "unitMode", "batch"}:
            values.append(text.lower() == "true")
        elif text.isascii() and text.removeprefix("-").isdigit() and len(text) < 12:
            values.append(int(text))
        else:
            values.append(text)
    while values and values[-1] is None:
        values.pop()
    oddity = draw(st.integers(0, 9))
    if oddity == 0 and values:
        at = draw(st.integers(0, len(values) - 1))
        values[at] = draw(st.sampled_from([None, True, 1.5, "1", 1 << 63, -1, "ü", b"\xff"]))
    elif oddity == 1:
        values += [1, "x"]
    extra = draw(st.sampled_from([None, None, None, {"zz": "1"}, {}]))
    whole = bytes(packb([code, flag, opaque, 3, 407, None, values, extra]))
    if oddity == 2:
        at = draw(st.integers(0, len(whole) - 1))
        whole = whole[:at] + draw(st.binary(min_size=1, max_size=1)) + whole[at + 1 :]
    elif oddity == 3:
        whole += b"\xc0"
    return whole


TEXTS = {
    *("a", "b", "c", "i", "n", "producerGroup", "topic", "defaultTopic", "properties", "bname"),
    *("consumerGroup", "subscription", "expressionType", "proxyFrowardClientId"),
}


bodies = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"x" * 1024, b"y" * 3000, b"z" * 200_000]),
)


@st.composite
def sends(draw: st.DrawFn, opaque: int) -> bytes:
    fields = draw(send_fields())
    code = draw(st.sampled_from([310, 310, 310, 10]))
    if code == 10 or draw(st.integers(0, 30)) == 0:
        fields = {LONG_NAMES[name]: value for name, value in fields.items()}
    return draw(request(code, fields, opaque, draw(bodies)))


@st.composite
def series(draw: st.DrawFn, opaque: int) -> bytes:
    """Generate many similar sends, perhaps with an unusual one among them."""
    first = draw(st.sampled_from([0, 1, 90, 980, 99_970, 999_999_990, 2_147_483_600]))
    queues = draw(st.sampled_from([1, 3, 4, 12]))
    topic = draw(st.sampled_from(TOPICS))
    size = draw(st.sampled_from([0, 1, 100, 1024]))
    text = draw(st.sampled_from(SERIES_PROPERTIES))
    flag, rpc_flag = draw(st.sampled_from(["0", "0", "1"])), draw(st.sampled_from(["0", "0", "2"]))
    frames = []
    for number in range(draw(st.integers(20, 70))):
        fields = {
            "a": "pg",
            "b": topic,
            "c": "TBW102",
            "d": "4",
            "e": str(number % queues),
            "f": "0",
            "g": str(1_700_000_000_000 + number // 9),
            "h": flag,
            "i": text % number,
            "j": "0",
            "k": "false",
            "m": "false",
        }
        members = ",".join(f'"{name}":{quoted(value)}' for name, value in fields.items())
        head = (
            f'{{"code":310,"extFields":{{{members}}},"flag":{rpc_flag},"language":"JAVA",'
            f'"opaque":{first + number},"serializeTypeCurrentRPC":"JSON","version":407}}'
        )
        frames.append(frame(head.encode(), bytes((number,)) * size))
    for _ in range(draw(st.sampled_from([0, 0, 1, 3]))):
        at = draw(st.integers(0, len(frames) - 1))
        place = draw(st.integers(8, min(len(frames[at]), 350) - 1))
        new = draw(st.sampled_from([b'"', b"\\", b"0", b"a", b"-", b" ", b"\x01", b"\xff"]))
        frames[at] = frames[at][:place] + new + frames[at][place + 1 :]
    return b"".join(frames)


SERIES_PROPERTIES = [
    "UNIQ_KEY\x017F00000100%08X\x02WAIT\x01true",
    "UNIQ_KEY\x017F00000100%08X\x02WAIT\x01true\x02TAGS\x01A\x02KEYS\x01order-7",
    "KEYS\x01k%03d\x02UNIQ_KEY\x01fixed",
    "KEYS\x01%d",
    "TAGS\x01%03d\x02WAIT\x01true",
    "UNIQ_KEY\x01%03d\x02UNIQ_KEY\x01x",
    "UNIQ_KEY\x01%03d\x02DELAY\x010",
    "UNIQ_KEY\x01%03d\x02TIMER_DELIVER_MS\x015",
    "UNIQ_KEY\x01%03d\x02WAIT\x01false\x02",
    "UNIQ_KEY\x01\xfc%03d",
    'other\x01"%03d"',
]


@st.composite
def batches(draw: st.DrawFn, opaque: int) -> bytes:
    fields = draw(send_fields())
    fields["m"] = draw(st.sampled_from(['"true"', '"true"', '"true"', '"0"', '"TRUE"']))
    count = draw(st.sampled_from([0, 1, 2, 5, 20, 40]))
    if draw(st.booleans()):
        size = draw(st.integers(0, 60))
        text = draw(properties()).encode()
        elements = [(n % 3, bytes((n,)) * size, text) for n in range(count)]
    else:
        elements = [
            (0, draw(st.binary(max_size=9)), draw(properties()).encode()) for _ in range(count)
        ]
    body = batch.encode(elements)
    damage = draw(st.integers(0, 12))
    if damage == 0:
        body = body[: draw(st.integers(0, len(body)))]
    elif damage == 1 and body:
        at = draw(st.integers(0, len(body) - 1))
        body = body[:at] + draw(st.binary(min_size=1, max_size=1)) + body[at + 1 :]
    return draw(request(320, fields, opaque, body))


@st.composite
def pulls(draw: st.DrawFn, opaque: int) -> bytes:
    fields = {
        "consumerGroup": quoted(draw(st.sampled_from(["g", "g", "h", "off", "new group"]))),
        "topic": quoted(draw(st.sampled_from([*TOPICS, "unknown"]))),
        "queueId": quoted(draw(numbers)),
        "queueOffset": quoted(draw(st.sampled_from(["0", "0", "1", "2", "7", "900"]))),
        "maxMsgNums": quoted(draw(st.sampled_from(["32", "1", "2", "0", "5000"]))),
        "sysFlag": quoted(draw(st.sampled_from(["4", "6", "7", "5", "2", "3", "0"]))),
        "commitOffset": quoted(draw(numbers)),
        "suspendTimeoutMillis": quoted("15000"),
        "subscription": quoted(draw(st.sampled_from(["*", "A", "A || B", "", "||", "x" * 300]))),
        "subVersion": quoted(draw(st.sampled_from(["0", "1", "2"]))),
        "expressionType": quoted(draw(st.sampled_from(["TAG", "TAG", "", "SQL92"]))),
    }
    if draw(st.integers(0, 5)) == 0:
        fields["maxMsgBytes"] = quoted(draw(st.sampled_from(["100", "0", "100000", "-1"])))
    if draw(st.integers(0, 5)) == 0:
        name = draw(st.sampled_from(sorted(fields)))
        fields[name] = draw(st.one_of(odd_numbers.map(quoted), odd_values))
    if draw(st.integers(0, 5)) == 0:
        fields.pop(draw(st.sampled_from(sorted(fields))))
    code = draw(st.sampled_from([11, 11, 361]))
    return draw(request(code, fields, opaque))


@st.composite
def commits(draw: st.DrawFn, opaque: int) -> bytes:
    fields = {
        "consumerGroup": quoted(draw(st.sampled_from(["g", "h", "bad group", ""]))),
        "topic": quoted(draw(st.sampled_from([*TOPICS, "bad name"]))),
        "queueId": quoted(draw(numbers)),
        "commitOffset": quoted(draw(st.sampled_from(["0", "1", "5", "3"]))),
    }
    if draw(st.integers(0, 5)) == 0:
        name = draw(st.sampled_from(sorted(fields)))
        fields[name] = draw(st.one_of(odd_numbers.map(quoted), odd_values))
    return draw(request(15, fields, opaque))


@st.composite
def cold(draw: st.DrawFn, opaque: int) -> bytes:
    """Generate requests that always take the slow path."""
    code, fields = draw(
        st.sampled_from(
            [
                (30, {"topic": '"plain"', "queueId": '"0"'}),
                (14, {"consumerGroup": '"g"', "topic": '"plain"', "queueId": '"0"'}),
                (215, {"topic": '"other"'}),
                (9999, {}),
                (
                    17,
                    {
                        "topic": '"plain"',
                        "defaultTopic": '"TBW102"',
                        "readQueueNums": '"2"',
                        "writeQueueNums": '"2"',
                        "perm": '"6"',
                        "topicFilterType": '"SINGLE_TAG"',
                        "order": '"false"',
                    },
                ),
            ]
        )
    )
    return frame(draw(header(code, fields, opaque)))


RULES = """
accounts:
- {accessKey: everything, secretKey: secret-of-all, defaultTopicPerm: PUB|SUB,
   defaultGroupPerm: SUB}
- {accessKey: publisher, secretKey: secret-of-it, topicPerms: [plain=PUB, wide=PUB, multi=DENY]}
- {accessKey: trusted-here, secretKey: secret-or-not, whiteRemoteAddress: 10.0.0.7}
"""

everything, publisher, trusted_here = (
    Credentials("everything", "secret-of-all"),
    Credentials("publisher", "secret-of-it"),
    Credentials("trusted-here", "secret-or-not"),
)
SIGNERS = [
    *(everything, everything, publisher, trusted_here, None),
    *(Credentials("publisher", "wrong"), Credentials("trusted-here", "wrong")),
    *(Credentials("stranger", "secret-of-all"), Credentials("everything", "secret-of-all", "tok")),
]
"""Who may sign a request under ``RULES``; None: nobody."""


def sign(one: bytes, who: Credentials) -> bytes:
    """Sign a frame, and leave its other fields as they are, however odd; msgpack can't be signed.

    The signature of a client covers what it wrote; here, what the general codec reads.
    """
    whole = cut(one)
    assert whole is not None
    try:
        command = decode(whole)
    except FrameError:
        return one
    header = bytes(whole.header)
    more = {"AccessKey": who.access_key}
    if who.security_token is not None:
        more["SecurityToken"] = who.security_token
    content = signed_content({**command.fields, **more}, whole.body)
    more["Signature"] = signature(who.secret_key, content)
    if whole.serialize is SerializeType.ROCKETMQ:
        pairs = b"".join(
            pack(">H", len(name)) + name.encode() + pack(">I", len(text)) + text.encode()
            for name, text in more.items()
        )
        at = 21 + int.from_bytes(header[13:17])
        length = int.from_bytes(header[at - 4 : at]) + len(pairs)
        header = header[: at - 4] + pack(">I", length) + header[at:] + pairs
    elif whole.serialize is SerializeType.JSON:
        found = re.search(rb'"extFields": ?{', header)
        if found is None:
            return one
        pairs = json.dumps(more)[1:-1].encode()
        rest = header[found.end() :]
        header = header[: found.end()] + pairs + (b"" if rest[:1] == b"}" else b",") + rest
    return frame(header, bytes(whole.body), whole.serialize)


@st.composite
def conversations(
    draw: st.DrawFn, *kinds: Any, signers: Sequence[Credentials | None] = (None,)
) -> list[bytes]:
    """Frames, in the chunks they are read in."""
    stream = b""
    for number in range(draw(st.integers(1, 12))):
        piece = draw(draw(st.sampled_from(kinds))(1000 + number))
        who = draw(st.sampled_from(signers))
        stream += piece if who is None else b"".join(sign(one, who) for one in frames(piece))
    cuts = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=4)))
    return [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
