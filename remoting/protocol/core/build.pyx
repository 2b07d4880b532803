"""Building the stored record of a message: its properties, its CRC and the fixed fields."""

from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memchr, memcmp, memcpy, memmove

from remoting.protocol.accelerated import crc32

from remoting.protocol.core.octets cimport put32, put64

cdef extern from "Python.h":
    int PyBUF_READ

cdef enum:
    NAME_END = 1
    ENTRY_END = 2
    MAGIC_V1 = 0xDAA320A7

cdef object _crc32 = crc32


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
