"""Stored records: where their parts lie, hashes, properties, and building them.

See ``remoting.protocol.message.record`` for the layout; ``locate`` is the one place where the
lengths that a record states are checked.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memchr, memcmp, memcpy, memmove

from remoting.protocol.accelerated import crc32
from remoting.protocol.message.tags import java_hash

from remoting.protocol.core.octets cimport get16, get32, put32, put64

cdef extern from "Python.h":
    int PyBUF_READ

cdef enum:
    NAME_END = 1
    ENTRY_END = 2
    MAGIC_V1 = 0xDAA320A7
    MAGIC_V2 = 0xDAA320AB
    BORN_HOST_V6 = 1 << 4
    STORE_HOST_V6 = 1 << 5
    V6_EXTRA = 12
    MAX_TOPIC_BYTES = 127
    MAX_BYTES_16 = 32767

cdef object _crc32 = crc32
cdef object _java_hash = java_hash


cdef bint locate(const uint8_t *data, Py_ssize_t limit, Layout *layout) noexcept nogil:
    """Find the parts of the record that begins at ``data``, of which ``limit`` bytes are there.

    Returns:
        False: there is no whole record whose lengths agree.
    """
    cdef Py_ssize_t size, body_length, topic_length
    cdef uint32_t magic
    if limit < FIXED_BYTES:
        return False
    size = get32(data)
    if size > limit:
        return False
    magic = get32(data + 4)
    layout.sys_flag = <int32_t>get32(data + 36)
    layout.body_at = 88
    if layout.sys_flag & BORN_HOST_V6:
        layout.body_at += V6_EXTRA
    if layout.sys_flag & STORE_HOST_V6:
        layout.body_at += V6_EXTRA
    if layout.body_at > size:
        return False
    body_length = get32(data + layout.body_at - 4)
    if body_length > size - layout.body_at - 3:
        return False
    layout.body_end = layout.body_at + body_length
    if magic == <uint32_t>MAGIC_V1:
        layout.topic_at = layout.body_end + 1
        topic_length = data[layout.body_end]
        if topic_length > MAX_TOPIC_BYTES:
            return False
    elif magic == <uint32_t>MAGIC_V2:
        layout.topic_at = layout.body_end + 2
        topic_length = get16(data + layout.body_end)
        if topic_length > MAX_BYTES_16:
            return False
    else:
        return False
    if topic_length > size - layout.topic_at - 2:
        return False
    layout.topic_end = layout.topic_at + topic_length
    layout.end = size
    size -= layout.topic_end + 2
    return get16(data + layout.topic_end) == size and size <= MAX_BYTES_16


cdef bint hash_ascii(const uint8_t *at, Py_ssize_t length, uint32_t *value) noexcept nogil:
    """Go on with Java's ``String.hashCode`` over a text; False if it is not ASCII."""
    cdef Py_ssize_t index
    cdef uint32_t hashed = value[0]
    for index in range(length):
        if at[index] >= 0x80:
            return False
        hashed = hashed * 31 + at[index]
    value[0] = hashed
    return True


cdef bint read_properties(
    uint8_t *text, Py_ssize_t length, bint keep_wait, Properties *properties
) noexcept nogil:
    """Find what a broker needs of a properties text, and take the WAIT entries out.

    Args:
        text: changed in place.
        length: of the text.
        keep_wait: leave the text as it is.
        properties: the text's new length, whether the sender waits for the disk, and the value of
            the last TAGS entry that has one; its tag points into the text.

    Returns:
        False: it asks for a delay, a timer or a transaction, or seems to.
    """
    cdef const uint8_t *at = text
    cdef const uint8_t *end = text + length
    cdef const uint8_t *next
    cdef const uint8_t *stop
    cdef const uint8_t *value
    cdef uint8_t *out = text
    cdef Py_ssize_t name_length, value_length
    properties.waits = True
    properties.tag = NULL
    properties.tag_length = 0
    while at < end:
        stop = <const uint8_t *>memchr(at, ENTRY_END, end - at)
        next = end if stop == NULL else stop + 1
        if stop == NULL:
            stop = end
        value = <const uint8_t *>memchr(at, NAME_END, stop - at)
        name_length = -1 if value == NULL else value - at
        value_length = 0 if value == NULL else stop - value - 1
        if name_length == 4 and memcmp(at, b"WAIT", 4) == 0:
            if value_length:
                properties.waits = is_true(value + 1, value_length)
            if not keep_wait:
                at = next
                continue
        elif name_length == 4 and value_length and memcmp(at, b"TAGS", 4) == 0:
            properties.tag = out + 5
            properties.tag_length = value_length
        elif is_special(at, name_length):
            return False
        if out != at:
            memmove(out, at, next - at)
        out += next - at
        at = next
    properties.length = out - text
    return True


cdef void read_tags(const uint8_t *text, Py_ssize_t length, Properties *properties) noexcept nogil:
    """Find the value of the last TAGS entry that has one, and nothing else."""
    cdef const uint8_t *at = text
    cdef const uint8_t *end = text + length
    cdef const uint8_t *stop
    properties.tag = NULL
    properties.tag_length = 0
    while at < end:
        stop = <const uint8_t *>memchr(at, ENTRY_END, end - at)
        if stop == NULL:
            stop = end
        if stop - at > 5 and memcmp(at, b"TAGS\x01", 5) == 0:
            properties.tag = at + 5
            properties.tag_length = stop - at - 5
        at = stop + 1


cdef inline bint is_true(const uint8_t *at, Py_ssize_t length) noexcept nogil:
    return (
        length == 4
        and at[0] | 32 == b"t"
        and at[1] | 32 == b"r"
        and at[2] | 32 == b"u"
        and at[3] | 32 == b"e"
    )


cdef inline bint is_special(const uint8_t *name, Py_ssize_t length) noexcept nogil:
    if length == 5:
        return memcmp(name, b"DELAY", 5) == 0
    if length == 8 and memcmp(name, b"TRAN_MSG", 8) == 0:
        return True
    return length > 6 and memcmp(name, b"TIMER_", 6) == 0


cdef int64_t tags_code(const uint8_t *tag, Py_ssize_t length) except? -1:
    """Java's ``String.hashCode`` of a tag; 0 for none."""
    cdef uint32_t value = 0
    if hash_ascii(tag, length, &value):
        return <int32_t>value
    text = PyBytes_FromStringAndSize(<const char *>tag, length)
    return _java_hash(text.decode("utf-8", "replace"))


cdef uint32_t body_crc(const uint8_t *body, Py_ssize_t length) except? 0:
    """CRC-32 of a body, of which a record keeps 31 bits."""
    if length == 0:
        return 0
    cdef uint32_t value = _crc32(PyMemoryView_FromMemory(<char *>body, length, PyBUF_READ))
    return value & 0x7FFFFFFF


cdef uint8_t *put_head(uint8_t *at, const Head *head) noexcept nogil:
    """Write a record's fixed fields up to the body's length; where the body goes."""
    put32(at, head.size)
    put32(at + 4, <uint32_t>MAGIC_V1)
    put32(at + 8, head.crc)
    put32(at + 12, <uint32_t>head.queue_id)
    put32(at + 16, <uint32_t>head.flag)
    put64(at + 20, head.queue_offset)
    put64(at + 28, head.position)
    put32(at + 36, <uint32_t>head.sys_flag)
    put64(at + 40, head.born_ms)
    memcpy(at + 48, head.born_host, 8)
    put64(at + 56, head.store_ms)
    memcpy(at + 64, head.store_host, 8)
    put32(at + 72, <uint32_t>head.reconsume_times)
    put64(at + 76, 0)
    put32(at + 84, head.body_length)
    return at + 88
