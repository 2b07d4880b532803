"""What a signature covers, taken from a decoded header; see ``remoting.protocol.signing``."""

from libc.stdint cimport uint8_t
from libc.string cimport memcmp, memcpy

from remoting.protocol.core.header cimport MAX_FIELDS, Field, Kind, unescape

cdef const uint8_t *ACCESS_KEY = b"AccessKey"
cdef const uint8_t *SIGNATURE = b"Signature"
cdef const uint8_t *UNIQUE_KEY_QUERY = b"_UNIQUE_KEY_QUERY"


cdef bint put_signed_values(const Header *header, Signed *signed, Buffer values):
    """Write the signed values of a request, and set its account and its signature.

    False: the slow path has to check it. That includes a request without account or signature, and
    one whose fields RocketMQ orders or chooses by special rules: repeated names, names beyond
    ASCII, and ``_UNIQUE_KEY_QUERY``.
    """
    cdef const Field *order[MAX_FIELDS]
    cdef const Field *field
    cdef Py_ssize_t length, size = 0
    cdef int index, place, compared
    signed.account.kind = signed.signature.kind = Kind.ABSENT
    # Clients write most fields in the order of their names, which makes insertion fast.
    for index in range(header.field_count):
        field = &header.fields[index]
        size += field.value.length
        place = index
        while place > 0:
            compared = compare(order[place - 1], field)
            if compared == 0:
                return False
            if compared < 0:
                break
            order[place] = order[place - 1]
            place -= 1
        order[place] = field
    if size == 0:
        return False
    values.clear()
    values.room(size)
    for index in range(header.field_count):
        field = order[index]
        if not is_ascii(field.name, field.name_length) or is_named(field, UNIQUE_KEY_QUERY, 17):
            return False
        if is_named(field, SIGNATURE, 9):
            signed.signature = field.value
            continue
        if is_named(field, ACCESS_KEY, 9):
            signed.account = field.value
        length = field.value.length
        if field.value.kind == Kind.ESCAPED:
            length = unescape(field.value.at, length, values.data + values.length)
            if length < 0:
                return False
        else:
            memcpy(values.data + values.length, field.value.at, length)
        values.length += length
    return signed.account.kind == Kind.TEXT and signed.signature.kind == Kind.TEXT


cdef inline int compare(const Field *one, const Field *other) noexcept nogil:
    cdef Py_ssize_t shorter = min(one.name_length, other.name_length)
    cdef int compared = memcmp(one.name, other.name, shorter)
    if compared != 0:
        return compared
    return (one.name_length > other.name_length) - (one.name_length < other.name_length)


cdef inline bint is_named(
    const Field *field, const uint8_t *name, Py_ssize_t length
) noexcept nogil:
    return field.name_length == length and memcmp(field.name, name, length) == 0


cdef inline bint is_ascii(const uint8_t *at, Py_ssize_t length) noexcept nogil:
    cdef Py_ssize_t index
    for index in range(length):
        if at[index] >= 0x80:
            return False
    return True
