"""Frames of answers that differ only in a few numbers, written from a template."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from remoting.protocol.core.octets cimport put32

cdef enum:
    JSON = 0
    ROCKETMQ = 1
    PREFIX_BYTES = 8
    LONGEST_HOLE = 32
    SMALLEST = 1024
    KEPT = 1 << 20

cdef const char *HEX = b"0123456789ABCDEF"


cdef class Buffer:
    """A growing buffer: ``room`` reserves memory; the caller fills it and adds to ``length``."""

    def __dealloc__(self):
        PyMem_Free(self.data)

    cdef uint8_t *room(self, Py_ssize_t count) except NULL:
        """Return memory for the next ``count`` bytes, valid until the next call."""
        cdef Py_ssize_t wanted = self.length + count
        cdef Py_ssize_t capacity = self.capacity
        cdef uint8_t *data
        if wanted > capacity:
            capacity = max(2 * capacity, wanted, SMALLEST)
            data = <uint8_t *>PyMem_Realloc(self.data, capacity)
            if data == NULL:
                raise MemoryError
            self.data = data
            self.capacity = capacity
        return self.data + self.length

    cdef bytes take(self):
        """Remove and return the content."""
        cdef bytes taken = PyBytes_FromStringAndSize(<char *>self.data, self.length)
        self.clear()
        return taken

    cdef int clear(self) except -1:
        """Remove the content, and free the memory if it is larger than ``KEPT``."""
        self.length = 0
        if self.capacity > KEPT:
            PyMem_Free(self.data)
            self.data = NULL
            self.capacity = 0
        return 0


cdef class AnswerTemplate:
    """The header of an answer: constant pieces, and numbers to be filled in between them.

    Args:
        codec: of the header: 0 JSON, 1 ROCKETMQ, 2 msgpack.
        literals: the constant pieces; one more than there are holes.
        holes: what to write between them: 0 the opaque, 1 to 3 a number, 4 message ids, 5 the
            length of the ext fields that follow, 6 a text of plain ASCII.
        id_prefix: the broker's address in an offset id: 16 hexadecimal digits.
    """

    def __init__(self, int codec, list literals, list holes, bytes id_prefix):
        assert len(literals) == len(holes) + 1
        assert all(type(literal) is bytes for literal in literals)
        self._codec = codec
        self._literals = literals
        self._holes = holes
        self._id_prefix = id_prefix
        self._fixed = PREFIX_BYTES + sum(map(len, literals)) + LONGEST_HOLE * len(holes)

    def fill(self, int opaque, int64_t first, int64_t second, int64_t third, *, body_length=0):
        """Return the frame without its body."""
        cdef Buffer out = Buffer()
        cdef Fill fill
        fill.opaque = opaque
        fill.numbers[0] = first
        fill.numbers[1] = second
        fill.numbers[2] = third
        fill.positions = NULL
        fill.count = 0
        fill.text = NULL
        fill.text_length = 0
        fill.body_length = body_length
        self.write(out, &fill)
        return out.take()

    cdef int write(self, Buffer out, const Fill *fill) except -1:
        """Append the frame up to its body, which takes ``fill.body_length`` bytes."""
        cdef Py_ssize_t id_bytes = PyBytes_GET_SIZE(self._id_prefix) + 16
        cdef Py_ssize_t most = self._fixed + (id_bytes + 1) * fill.count + fill.text_length
        cdef uint8_t *start = out.room(most)
        cdef uint8_t *at = start + PREFIX_BYTES
        cdef uint8_t *fields = NULL
        cdef Py_ssize_t index
        cdef int hole
        at = literal(at, <bytes>self._literals[0])
        for index in range(len(self._holes)):
            hole = self._holes[index]
            if hole == Hole.OPAQUE and self._codec == ROCKETMQ:
                at = put_big_endian(at, fill.opaque, 4)
            elif hole == Hole.OPAQUE:
                at = self._number(at, fill.opaque)
            elif hole == Hole.IDS:
                at = self._ids(at, fill.positions, fill.count)
            elif hole == Hole.TEXT:
                at = self._text_length(at, fill.text_length)
                memcpy(at, fill.text, fill.text_length)
                at += fill.text_length
            elif hole == Hole.FIELDS_LENGTH:
                fields = at
                at += 4
            else:
                at = self._number(at, fill.numbers[hole - 1])
            at = literal(at, <bytes>self._literals[index + 1])
        if fields != NULL:
            put32(fields, <uint32_t>(at - fields - 4))
        put32(start, <uint32_t>(at - start - 4 + fill.body_length))
        put32(start + 4, <uint32_t>(self._codec << 24 | (at - start - PREFIX_BYTES)))
        out.length += at - start
        return 0

    cdef uint8_t *_number(self, uint8_t *at, int64_t value) noexcept:
        cdef uint8_t *end
        if self._codec == JSON:
            return decimal(at, value)
        if self._codec == ROCKETMQ:
            end = decimal(at + 4, value)
            put32(at, <uint32_t>(end - at - 4))
            return end
        if value < 0x80:
            return put_big_endian(at, value, 1)
        return put_packed(at, 0xCC, value)

    cdef uint8_t *_text_length(self, uint8_t *at, Py_ssize_t size) noexcept:
        if self._codec == ROCKETMQ:
            put32(at, <uint32_t>size)
            return at + 4
        if self._codec == JSON:
            return at
        return put_big_endian(at, 0xA0 | size, 1) if size < 0x20 else put_packed(at, 0xD9, size)

    cdef uint8_t *_ids(self, uint8_t *at, const int64_t *positions, Py_ssize_t count) noexcept:
        cdef Py_ssize_t prefix = PyBytes_GET_SIZE(self._id_prefix)
        cdef Py_ssize_t index
        at = self._text_length(at, (prefix + 17) * count - 1)
        for index in range(count):
            if index:
                at[0] = b","
                at += 1
            memcpy(at, PyBytes_AS_STRING(self._id_prefix), prefix)
            at = hexadecimal(at + prefix, <uint64_t>positions[index])
        return at


cdef inline uint8_t *literal(uint8_t *at, bytes text) noexcept:
    memcpy(at, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
    return at + PyBytes_GET_SIZE(text)


cdef uint8_t *decimal(uint8_t *at, int64_t value) noexcept nogil:
    cdef uint8_t digits[20]
    cdef int count = 0
    cdef uint64_t left = <uint64_t>value
    if value < 0:
        at[0] = b"-"
        at += 1
        left = 0 - left
    while True:
        digits[count] = 48 + left % 10
        count += 1
        left //= 10
        if left == 0:
            break
    while count:
        count -= 1
        at[0] = digits[count]
        at += 1
    return at


cdef inline uint8_t *hexadecimal(uint8_t *at, uint64_t value) noexcept nogil:
    cdef int index
    for index in range(16):
        at[index] = HEX[(value >> (60 - 4 * index)) & 15]
    return at + 16


cdef uint8_t *put_packed(uint8_t *at, int mark, uint64_t value) noexcept nogil:
    """Write a number as msgpack does: the mark for its size, then as few bytes as possible."""
    cdef int size = 0
    while size < 3 and value >> (8 << size):
        size += 1
    at[0] = <uint8_t>(mark + size)
    return put_big_endian(at + 1, value, 1 << size)


cdef inline uint8_t *put_big_endian(uint8_t *at, uint64_t value, int count) noexcept nogil:
    while count:
        count -= 1
        at[0] = <uint8_t>(value >> (8 * count))
        at += 1
    return at
