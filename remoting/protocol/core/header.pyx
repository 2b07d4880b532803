"""Decoding the headers of sends, pulls and offset commits in place, in any of the three codecs.

A header is decoded into slots, one for each field of its command, without copying and without
creating objects. ``scan`` accepts what ordinary clients write, with the fields in any order, and
refuses everything unusual: unknown keys of the envelope, repeated fields, escapes in a name,
numbers with a sign. The general codecs process what it refuses, and report errors. What ``scan``
accepts, the general codecs decode to the same values.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy, strlen

from remoting.protocol.core.octets cimport get16, get32, put16, put64

cdef enum:
    SEND_MESSAGE = 10
    PULL_MESSAGE = 11
    UPDATE_CONSUMER_OFFSET = 15
    SEND_MESSAGE_V2 = 310
    SEND_BATCH_MESSAGE = 320
    LITE_PULL_MESSAGE = 361
    MOST_DIGITS = 18
    BINARY_HEAD_BYTES = 17
    LONGEST_KEY = 640
    # The first ENVELOPE_NUMBERS of the envelope's keys are numbers; EXT_FIELDS holds the fields.
    ENVELOPE_NUMBERS = 4
    EXT_FIELDS = 7
    ENVELOPE_COUNT = 8
    # The envelope's values in msgpack: code, flag, opaque, language, version and remark.
    ENVELOPE_VALUES = 6
    LANGUAGE = 3
    REMARK = 5

cdef const char *SEND_NAMES[15]
SEND_NAMES[:] = [
    b"producerGroup", b"topic", b"defaultTopic", b"defaultTopicQueueNums", b"queueId", b"sysFlag",
    b"bornTimestamp", b"flag", b"properties", b"reconsumeTimes", b"unitMode", b"maxReconsumeTimes",
    b"batch", b"bname", b"",
]
cdef const char *PULL_NAMES[15]
PULL_NAMES[:] = [
    b"consumerGroup", b"topic", b"queueId", b"queueOffset", b"maxMsgNums", b"sysFlag",
    b"commitOffset", b"suspendTimeoutMillis", b"subscription", b"subVersion", b"expressionType",
    b"bname", b"maxMsgBytes", b"requestSource", b"proxyFrowardClientId",
]
cdef const char *COMMIT_NAMES[15]
COMMIT_NAMES[:] = [
    b"consumerGroup", b"topic", b"queueId", b"commitOffset", b"bname", b"forward", b"", b"", b"",
    b"", b"", b"", b"", b"", b"",
]
# SEND_MESSAGE declares ``batch`` before ``maxReconsumeTimes``. The order matters only in msgpack.
cdef int LONG_SEND_ORDER[15]
LONG_SEND_ORDER[:] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 11, 13, 14]
cdef const char *ESCAPES = b'"\\/bfnrt'
cdef const char *MEANT = b'"\\/\b\f\n\r\t'
cdef const char *ENVELOPE[8]
ENVELOPE[:] = [
    b"code", b"opaque", b"flag", b"version", b"language", b"serializeTypeCurrentRPC", b"remark",
    b"extFields",
]
cdef int SEND_COUNT = 14
cdef int PULL_COUNT = 15
cdef int COMMIT_COUNT = 6


cdef struct Reader:
    const uint8_t *at
    const uint8_t *end


cdef bint scan(Header *header, Codec codec, const uint8_t *at, Py_ssize_t length):
    """Decode a header. False: the general codec has to decode it.

    The texts of ``header`` point into the memory at ``at``.
    """
    cdef Reader reader
    cdef int slot
    reader.at = at
    reader.end = at + length
    header.codec = codec
    header.field_count = 0
    header.kinds = 0
    header.account.kind = Kind.ABSENT
    header.account.length = 0
    for slot in range(SLOTS):
        header.slots[slot].kind = Kind.ABSENT
        header.slots[slot].length = 0
    if codec == Codec.JSON:
        return scan_json(header, &reader) and assign(header) and is_text(at, length)
    if codec == Codec.ROCKETMQ:
        return scan_binary(header, &reader) and assign(header)
    return scan_msgpack(header, &reader)


# --- JSON


cdef inline void skip_space(Reader *reader) noexcept nogil:
    while reader.at < reader.end and reader.at[0] in (32, 9, 10, 13):
        reader.at += 1


cdef inline bint skip(Reader *reader, uint8_t character) noexcept nogil:
    """Skip white space and ``character``. False: another character is next."""
    skip_space(reader)
    if reader.at == reader.end or reader.at[0] != character:
        return False
    reader.at += 1
    return True


cdef bint read_string(Reader *reader, Text *text) noexcept nogil:
    cdef const uint8_t *at
    cdef uint8_t character
    if not skip(reader, b'"'):
        return False
    at = reader.at
    text.at = at
    text.kind = Kind.TEXT
    while at < reader.end:
        character = at[0]
        if character == b'"':
            text.length = at - text.at
            reader.at = at + 1
            return True
        if character < 32:
            return False
        if character == b"\\":
            text.kind = Kind.ESCAPED
            at += 1
        at += 1
    return False


cdef bint read_digits(Reader *reader, Text *text) noexcept nogil:
    """Read a non-negative number without quotes as the text of its digits."""
    skip_space(reader)
    text.at = reader.at
    text.kind = Kind.TEXT
    while reader.at < reader.end and 48 <= reader.at[0] <= 57:
        reader.at += 1
    text.length = reader.at - text.at
    return text.length == 1 or (text.length > 1 and text.at[0] != 48)


cdef bint scan_json(Header *header, Reader *reader) noexcept nogil:
    cdef Text key, value
    cdef int64_t numbers[ENVELOPE_NUMBERS]
    cdef uint32_t seen = 0
    cdef int which
    for which in range(ENVELOPE_NUMBERS):
        numbers[which] = 0
    if not skip(reader, b"{"):
        return False
    while True:
        if not read_string(reader, &key) or not skip(reader, b":"):
            return False
        which = place_in(ENVELOPE, ENVELOPE_COUNT, key.at, key.length)
        if which < 0 or seen >> which & 1:
            return False
        seen |= 1 << which
        if which == EXT_FIELDS:
            if not read_fields(header, reader):
                return False
        elif which >= ENVELOPE_NUMBERS:
            if not read_string(reader, &value) or value.kind != Kind.TEXT:
                return False
        elif not read_digits(reader, &value) or not decimal(&value, &numbers[which]):
            return False
        elif numbers[which] > 0x7FFFFFFF:
            return False
        if skip(reader, b","):
            continue
        if not skip(reader, b"}"):
            return False
        break
    header.code = <int32_t>numbers[0]
    header.opaque = <int32_t>numbers[1]
    header.flag = <int32_t>numbers[2]
    skip_space(reader)
    return reader.at == reader.end and seen & 1 and seen >> EXT_FIELDS & 1


cdef bint read_fields(Header *header, Reader *reader) noexcept nogil:
    cdef Text name
    cdef Field *field
    if not skip(reader, b"{"):
        return False
    if skip(reader, b"}"):
        return True
    while header.field_count < MAX_FIELDS:
        field = &header.fields[header.field_count]
        if not read_string(reader, &name) or name.kind != Kind.TEXT or not skip(reader, b":"):
            return False
        skip_space(reader)
        if reader.at < reader.end and reader.at[0] != b'"':
            if not read_digits(reader, &field.value):
                return False
        elif not read_string(reader, &field.value):
            return False
        field.name = name.at
        field.name_length = name.length
        header.field_count += 1
        if skip(reader, b","):
            continue
        return skip(reader, b"}")
    return False


cdef inline int hex_digit(uint8_t character) noexcept nogil:
    if 48 <= character <= 57:
        return character - 48
    character |= 32
    if 97 <= character <= 102:
        return character - 87
    return -1


cdef Py_ssize_t unescape(const uint8_t *at, Py_ssize_t length, uint8_t *out) noexcept nogil:
    """Write the UTF-8 form of a JSON string; return its length, -1 for surrogates and bad escapes.

    ``out`` needs room for ``length`` bytes: no escape is shorter than the character it stands for.
    """
    cdef const uint8_t *end = at + length
    cdef uint8_t *start = out
    cdef const uint8_t *found
    cdef uint8_t character
    cdef int digit, number, index
    while at < end:
        character = at[0]
        at += 1
        if character != b"\\":
            out[0] = character
            out += 1
            continue
        if at == end:
            return -1
        character = at[0]
        at += 1
        if character != b"u":
            found = <const uint8_t *>memchr(ESCAPES, character, 8)
            if found == NULL:
                return -1
            out[0] = MEANT[found - <const uint8_t *>ESCAPES]
            out += 1
            continue
        if end - at < 4:
            return -1
        number = 0
        for index in range(4):
            digit = hex_digit(at[index])
            if digit < 0:
                return -1
            number = number * 16 + digit
        at += 4
        if 0xD800 <= number < 0xE000:
            return -1
        if number < 0x80:
            out[0] = number
            out += 1
            continue
        if number < 0x800:
            out[0] = 0xC0 | (number >> 6)
        else:
            out[0] = 0xE0 | (number >> 12)
            out[1] = 0x80 | ((number >> 6) & 63)
            out += 1
        out[1] = 0x80 | (number & 63)
        out += 2
    return out - start


# --- RocketMQ's binary header


cdef bint scan_binary(Header *header, Reader *reader):
    cdef const uint8_t *at = reader.at
    cdef Py_ssize_t length = reader.end - at
    cdef int32_t size
    cdef Field *field
    if length < BINARY_HEAD_BYTES + 4 or get32(at + 13) != 0:
        return False
    header.code = get16(at)
    header.opaque = <int32_t>get32(at + 5)
    header.flag = <int32_t>get32(at + 9)
    at += BINARY_HEAD_BYTES
    size = <int32_t>get32(at)
    at += 4
    if size != reader.end - at:
        return False
    while at < reader.end:
        if header.field_count == MAX_FIELDS or reader.end - at < 6:
            return False
        field = &header.fields[header.field_count]
        field.name_length = get16(at)
        at += 2
        if field.name_length > reader.end - at - 4:
            return False
        field.name = at
        at += field.name_length
        size = <int32_t>get32(at)
        at += 4
        if size < 0 or size > reader.end - at:
            return False
        field.value.at = at
        field.value.length = size
        field.value.kind = Kind.TEXT
        at += size
        if not is_text(field.name, field.name_length) or not is_text(field.value.at, size):
            return False
        header.field_count += 1
    return True


# --- msgpack


cdef bint scan_msgpack(Header *header, Reader *reader):
    cdef Text value
    cdef int32_t envelope[ENVELOPE_VALUES]
    cdef int count, index, slot
    if reader.at == reader.end or reader.at[0] != 0x98:
        return False
    reader.at += 1
    for index in range(ENVELOPE_VALUES):
        if not read_value(reader, &value):
            return False
        if index == REMARK or (index == LANGUAGE and value.kind == Kind.ABSENT):
            if value.kind != Kind.ABSENT:
                return False
        elif value.kind != Kind.NUMBER or value.number > 0x7FFFFFFF:
            return False
        envelope[index] = <int32_t>value.number
    header.code, header.flag, header.opaque = envelope[0], envelope[1], envelope[2]
    if reader.at == reader.end or not 0x90 <= reader.at[0] <= 0x9F:
        return False
    count = reader.at[0] & 15
    reader.at += 1
    if count > slot_count(header.code):
        return False
    for index in range(count):
        if not read_value(reader, &value):
            return False
        slot = LONG_SEND_ORDER[index] if header.code == SEND_MESSAGE else index
        header.slots[slot] = value
        header.kinds |= <uint64_t>value.kind << (3 * slot)
    # There must be no other ext fields, and no bytes after them.
    return read_value(reader, &value) and value.kind == Kind.ABSENT and reader.at == reader.end


cdef bint read_value(Reader *reader, Text *text):
    """Read a text, a non-negative number, a boolean, or nil, which is ABSENT."""
    cdef const uint8_t *at = reader.at
    cdef Py_ssize_t left = reader.end - at
    cdef Py_ssize_t size = 0, head = 1, index
    cdef bint is_text_head
    cdef uint8_t mark
    if left < 1:
        return False
    mark = at[0]
    text.kind = Kind.NUMBER
    if mark < 0x80:
        text.number = mark
    elif mark == 0xC0:
        text.kind = Kind.ABSENT
    elif mark == 0xC2 or mark == 0xC3:
        text.kind = Kind.BOOLEAN
    elif 0xA0 <= mark < 0xC0:
        text.kind = Kind.TEXT
        size = mark & 31
    elif 0xCC <= mark <= 0xCF or 0xD9 <= mark <= 0xDB:
        is_text_head = mark >= 0xD9
        head = 1 + (1 << (mark - (0xD9 if is_text_head else 0xCC)))
        if left < head:
            return False
        text.number = 0
        for index in range(1, head):
            text.number = <int64_t>(<uint64_t>text.number << 8 | at[index])
        if is_text_head:
            text.kind = Kind.TEXT
            size = text.number
    else:
        return False
    if size > left - head or (text.kind == Kind.NUMBER and text.number < 0):
        return False
    # For a number, all its bytes; for a text, the bytes after its length.
    text.at = at + head if text.kind == Kind.TEXT else at
    text.length = size if text.kind == Kind.TEXT else head
    reader.at = at + head + size
    return text.kind != Kind.TEXT or is_text(text.at, size)


# --- fields and slots


cdef inline int slot_count(int32_t code) noexcept nogil:
    if code == SEND_MESSAGE or code == SEND_MESSAGE_V2 or code == SEND_BATCH_MESSAGE:
        return SEND_COUNT
    if code == PULL_MESSAGE or code == LITE_PULL_MESSAGE:
        return PULL_COUNT
    return COMMIT_COUNT if code == UPDATE_CONSUMER_OFFSET else 0


cdef bint assign(Header *header) noexcept nogil:
    """Assign the fields to the command's slots; unknown names are ignored."""
    cdef int index, slot, expected = 0
    cdef int count = slot_count(header.code)
    cdef Field *field
    if count == 0:
        return False
    for index in range(header.field_count):
        field = &header.fields[index]
        slot = slot_of(header.code, field, expected, count)
        # Escapes are common only in the properties: other fields with escapes are refused.
        if field.value.kind == Kind.ESCAPED and (count != SEND_COUNT or slot != PROPERTIES):
            return False
        if slot < 0:
            continue
        if header.slots[slot].kind != Kind.ABSENT:
            return False
        expected = slot + 1
        # An empty text of a binary header is null, unless the field is a required text.
        if header.codec == Codec.ROCKETMQ and field.value.length == 0:
            if not is_required_text(header.code, slot):
                continue
        header.slots[slot] = field.value
        header.kinds |= <uint64_t>field.value.kind << (3 * slot)
    return True


cdef inline bint is_required_text(int32_t code, int slot) noexcept nogil:
    return slot <= (2 if slot_count(code) == SEND_COUNT else 1)


cdef int slot_of(int32_t code, const Field *field, int expected, int count) noexcept nogil:
    cdef const char **names = PULL_NAMES
    cdef int slot
    if code == SEND_MESSAGE_V2 or code == SEND_BATCH_MESSAGE:
        slot = field.name[0] - 97 if field.name_length == 1 else -1
        return slot if slot < count else -1
    if code == SEND_MESSAGE:
        names = SEND_NAMES
    elif code == UPDATE_CONSUMER_OFFSET:
        names = COMMIT_NAMES
    if expected < count and place_in(&names[expected], 1, field.name, field.name_length) == 0:
        return expected
    return place_in(names, count, field.name, field.name_length)


cdef int place_in(
    const char **names, int count, const uint8_t *name, Py_ssize_t length
) noexcept nogil:
    """Return the index of a name among these; -1 if it is not there."""
    cdef int place
    for place in range(count):
        if <Py_ssize_t>strlen(names[place]) == length and memcmp(names[place], name, length) == 0:
            return place
    return -1


cdef bint number_of(const Header *header, int slot, int64_t *number) noexcept nogil:
    """Read a slot as a plain decimal number; False for anything else, valid or not."""
    cdef const Text *text = &header.slots[slot]
    if header.codec == Codec.MSGPACK:
        number[0] = text.number
        return text.kind == Kind.NUMBER
    return text.kind == Kind.TEXT and decimal(text, number)


cdef bint decimal(const Text *text, int64_t *number) noexcept nogil:
    cdef int64_t value = 0
    cdef Py_ssize_t index
    if not 0 < text.length <= MOST_DIGITS:
        return False
    for index in range(text.length):
        if not 48 <= text.at[index] <= 57:
            return False
        value = value * 10 + (text.at[index] - 48)
    number[0] = value
    return True


cdef bytes key_of(const Header *header, uint32_t slots):
    """Return a key made of codec, code, kinds, the given ``slots`` and the account.

    None: it is too long.
    """
    cdef uint8_t key[LONGEST_KEY]
    cdef uint8_t *at = key
    cdef Py_ssize_t length
    cdef int slot
    at[0] = header.codec
    put16(at + 1, header.code)
    put64(at + 3, header.kinds)
    at += 11
    for slot in range(SLOTS):
        if slots >> slot & 1:
            length = header.slots[slot].length
            if length + 2 > key + LONGEST_KEY - at:
                return None
            put16(at, length)
            if length:
                memcpy(at + 2, header.slots[slot].at, length)
            at += length + 2
    # The end of the key is the account's: no account has the key of another, or of none.
    length = header.account.length
    if length:
        if length > key + LONGEST_KEY - at:
            return None
        memcpy(at, header.account.at, length)
        at += length
    return PyBytes_FromStringAndSize(<char *>key, at - key)


cdef bint is_text(const uint8_t *at, Py_ssize_t length):
    """Return whether bytes are UTF-8; fast for ASCII, which nearly all are."""
    cdef Py_ssize_t index = 0
    cdef uint64_t eight
    while length - index >= 8:
        memcpy(&eight, at + index, 8)
        if eight & 0x8080808080808080ULL:
            break
        index += 8
    while index < length and at[index] < 0x80:
        index += 1
    if index == length:
        return True
    try:
        PyUnicode_DecodeUTF8(<const char *>at + index, length - index, NULL)
    except UnicodeDecodeError:
        return False
    return True
