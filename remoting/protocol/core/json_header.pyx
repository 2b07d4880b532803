"""The JSON form of a header, as every client writes it; see ``header``."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcmp

from remoting.protocol.core.header cimport MAX_FIELDS, Field, Header, Kind, Reader, Text


cdef inline void skip_space(Reader *reader) noexcept nogil:
    while reader.at < reader.end and reader.at[0] in (32, 9, 10, 13):
        reader.at += 1


cdef inline bint skip(Reader *reader, uint8_t character) noexcept nogil:
    """Whether this character comes next, which is then behind."""
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


cdef bint read_number(Reader *reader, int32_t *number) noexcept nogil:
    cdef int64_t value = 0
    cdef const uint8_t *start
    skip_space(reader)
    start = reader.at
    while reader.at < reader.end and 48 <= reader.at[0] <= 57:
        value = value * 10 + (reader.at[0] - 48)
        if value > 0x7FFFFFFF:
            return False
        reader.at += 1
    if reader.at == start or (start[0] == 48 and reader.at - start > 1):
        return False
    number[0] = <int32_t>value
    return True


cdef inline bint same(const Text *text, const char *name, size_t length) noexcept nogil:
    return text.length == <Py_ssize_t>length and memcmp(text.at, name, length) == 0


cdef bint scan_json(Header *header, Reader *reader) noexcept nogil:
    cdef Text key, value
    cdef uint32_t seen = 0, bit
    cdef int32_t version
    if not skip(reader, b"{"):
        return False
    header.opaque = 0
    header.flag = 0
    while True:
        if not read_string(reader, &key) or not skip(reader, b":"):
            return False
        if same(&key, b"code", 4):
            bit = 1
            if not read_number(reader, &header.code):
                return False
        elif same(&key, b"opaque", 6):
            bit = 2
            if not read_number(reader, &header.opaque):
                return False
        elif same(&key, b"flag", 4):
            bit = 4
            if not read_number(reader, &header.flag):
                return False
        elif same(&key, b"extFields", 9):
            bit = 8
            if not read_fields(header, reader):
                return False
        elif same(&key, b"version", 7):
            bit = 16
            if not read_number(reader, &version):
                return False
        elif same(&key, b"language", 8):
            bit = 32
            if not read_string(reader, &value) or value.kind != Kind.TEXT:
                return False
        elif same(&key, b"serializeTypeCurrentRPC", 23):
            bit = 64
            if not read_string(reader, &value) or value.kind != Kind.TEXT:
                return False
        else:
            return False
        if seen & bit:
            return False
        seen |= bit
        if skip(reader, b","):
            continue
        if not skip(reader, b"}"):
            return False
        skip_space(reader)
        return reader.at == reader.end and seen & 9 == 9


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
        if not read_string(reader, &field.value):
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
    """The UTF-8 form of a JSON string; -1 for surrogates and for what is no escape.

    ``out`` has room for ``length`` bytes: no escape is shorter than what it stands for.
    """
    cdef const uint8_t *end = at + length
    cdef uint8_t *start = out
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
        if character == b"u":
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
            elif number < 0x800:
                out[0] = 0xC0 | (number >> 6)
                out[1] = 0x80 | (number & 63)
                out += 2
            else:
                out[0] = 0xE0 | (number >> 12)
                out[1] = 0x80 | ((number >> 6) & 63)
                out[2] = 0x80 | (number & 63)
                out += 3
            continue
        if character == b"n":
            character = 10
        elif character == b"t":
            character = 9
        elif character == b"r":
            character = 13
        elif character == b"b":
            character = 8
        elif character == b"f":
            character = 12
        elif character not in (b'"', b"\\", b"/"):
            return -1
        out[0] = character
        out += 1
    return out - start
