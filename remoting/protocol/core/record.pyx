"""Stored records, compiled: checking the layout, hashing, walking over the log, and encoding.

``check_layout`` trusts no input: all positions of a record that it accepts are within its limit.
It accepts the same bytes as ``locate`` of ``remoting.protocol.message.record``, which describes the
layout. A walk stops before the first record that needs a closer check; the Python code does that.
"""

from cpython.array cimport array, clone, resize_smart
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.limits cimport LLONG_MAX
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy, memmove

from remoting.protocol.core.octets cimport get16, get32, get64, put32, put64

from remoting.protocol.accelerated import crc32
from remoting.protocol.names import SCHEDULE_TOPIC, validate_topic

cdef extern from "Python.h":
    int PyBUF_READ

cdef enum:
    HEAD_BYTES = 88
    NAME_END = 1
    ENTRY_END = 2
    MAGIC_V1 = 0xDAA320A7
    V6_EXTRA = 12
    BORN_V6 = 0x10
    STORE_V6 = 0x20
    TRANSACTION_MASK = 0xC
    PREPARED = 0x4
    ROLLBACK = 0xC
    MAX_TOPIC = 127
    MAX_LONG_TEXT = 32767
    ENTRY_BYTES = 20

cdef array _LONGS = array("q")
cdef bytes _SCHEDULE = SCHEDULE_TOPIC.encode()


# --- one record

cdef bint check_layout(const uint8_t *at, Py_ssize_t limit, Record *record) noexcept nogil:
    """Return whether a record with consistent lengths begins at ``at``, within ``limit`` bytes.

    Fills ``record``; the spans are relative to ``at``.
    """
    cdef int64_t end, body_at, body_end, topic_at, topic_end, length
    if limit < FIXED_BYTES:
        return False
    end = get32(at)
    record.magic = get32(at + 4)
    record.sys_flag = <int32_t>get32(at + 36)
    record.born_host_bytes = 20 if record.sys_flag & BORN_V6 else 8
    record.store_host_bytes = 20 if record.sys_flag & STORE_V6 else 8
    body_at = HEAD_BYTES - 16 + record.born_host_bytes + record.store_host_bytes
    if end > limit or body_at + 3 > end:
        return False
    body_end = body_at + get32(at + body_at - 4)
    if body_end + 3 > end:
        return False
    if record.magic == <uint32_t>0xDAA320A7u:
        topic_at = body_end + 1
        length = at[body_end]
        if length > MAX_TOPIC:
            return False
    elif record.magic == <uint32_t>0xDAA320ABu:
        topic_at = body_end + 2
        length = get16(at + body_end)
        if length > MAX_LONG_TEXT:
            return False
    else:
        return False
    topic_end = topic_at + length
    if topic_end + 2 > end:
        return False
    length = get16(at + topic_end)
    if length > MAX_LONG_TEXT or topic_end + 2 + length != end:
        return False
    record.size = end
    record.crc = get32(at + 8)
    record.queue_id = <int32_t>get32(at + 12)
    record.queue_offset = <int64_t>get64(at + 20)
    record.physical_offset = <int64_t>get64(at + 28)
    record.store_ms = <int64_t>get64(at + 48 + record.born_host_bytes)
    record.body = Span(body_at, body_end - body_at)
    record.topic = Span(topic_at, topic_end - topic_at)
    record.properties = Span(topic_end + 2, length)
    return True


cdef Span find_property(
    const uint8_t *text, Py_ssize_t length, const uint8_t *name, Py_ssize_t name_length
) noexcept nogil:
    """Return the span of the last value of a name that is not empty; length 0 if there is none."""
    cdef Span found = Span(0, 0)
    cdef Py_ssize_t at = 0, end, value_at
    cdef const uint8_t *mark
    while at < length:
        mark = <const uint8_t *>memchr(text + at, 2, length - at)
        end = length if mark == NULL else mark - text
        value_at = at + name_length + 1
        if value_at < end and text[value_at - 1] == 1:
            if memcmp(text + at, name, name_length) == 0:
                found = Span(value_at, end - value_at)
        at = end + 1
    return found


cdef uint32_t java_hash(
    const uint8_t *text, Py_ssize_t length, uint32_t before
) except? 0xFFFFFFFF:
    """Return Java's String.hashCode of UTF-8 text; ``before`` is the hash of the text before it."""
    cdef Py_ssize_t at
    cdef uint32_t value = before
    cdef Py_UCS4 sign
    for at in range(length):
        if text[at] >= 0x80:
            break
        value = value * 31 + text[at]
    else:
        return value
    value = before
    for sign in text[:length].decode("utf-8", "replace"):
        if sign > 0xFFFF:
            value = value * 31 + 0xD800 + ((<uint32_t>sign - 0x10000) >> 10)
            value = value * 31 + 0xDC00 + ((<uint32_t>sign - 0x10000) & 0x3FF)
        else:
            value = value * 31 + <uint32_t>sign
    return value


cdef int64_t tags_code(const uint8_t *text, Py_ssize_t length) except? -1:
    """Return the tags code of a properties text: the hash code of TAGS, 0 without a tag."""
    cdef Span tags = find_property(text, length, b"TAGS", 4)
    if not tags.length:
        return 0
    return <int32_t>java_hash(text + tags.at, tags.length, 0)


# --- many records

cdef class Column:
    """A growing array of 64-bit numbers."""

    cdef readonly array values

    def __cinit__(self):
        self.values = clone(_LONGS, 0, False)

    cdef int add(self, int64_t value) except -1:
        cdef Py_ssize_t count = len(self.values)
        resize_smart(self.values, count + 1)
        self.values.data.as_longlongs[count] = value
        return 0


cdef class Keys:
    """Columns of message keys: the key's hash, its message's physical offset and store time."""

    cdef Column _hashes, _offsets, _times_ms
    cdef bytes _topic
    cdef uint32_t _prefix

    def __cinit__(self):
        self._hashes = Column()
        self._offsets = Column()
        self._times_ms = Column()

    cdef int take(self, const uint8_t *at, Record *record) except -1:
        cdef const uint8_t *text = at + record.properties.at
        cdef const uint8_t *space
        cdef Span found
        cdef Py_ssize_t begin, end
        if record.sys_flag & TRANSACTION_MASK == ROLLBACK:
            return 0
        self._prefix = java_hash(at + record.topic.at, record.topic.length, 0) * 31 + 35
        found = find_property(text, record.properties.length, b"UNIQ_KEY", 8)
        if found.length:
            self._add(text + found.at, found.length, record)
        found = find_property(text, record.properties.length, b"KEYS", 4)
        begin, end = found.at, found.at + found.length
        while begin < end:
            space = <const uint8_t *>memchr(text + begin, 32, end - begin)
            found.length = (end if space == NULL else space - text) - begin
            if found.length:
                self._add(text + begin, found.length, record)
            begin += found.length + 1
        return 0

    cdef int _add(self, const uint8_t *key, Py_ssize_t length, Record *record) except -1:
        cdef int64_t value = <int32_t>java_hash(key, length, self._prefix)
        if value < 0:
            value = -value
        self._hashes.add(0 if value == <int64_t>0x80000000u else value)
        self._offsets.add(record.physical_offset)
        self._times_ms.add(record.store_ms)
        return 0

    cdef tuple columns(self):
        return self._hashes.values, self._offsets.values, self._times_ms.values


def walk_keys(const uint8_t[::1] data, int64_t base):
    """Return the keys of the records at the beginning of ``data``; see the stub."""
    cdef Keys keys = Keys()
    cdef Record record
    cdef Py_ssize_t at = 0, length = data.shape[0]
    while length - at >= FIXED_BYTES and check_layout(&data[at], length - at, &record):
        if record.physical_offset != base + at:
            break
        keys.take(&data[at], &record)
        at += record.size
    return (at, *keys.columns())


def property_rows(const uint8_t[::1] data, tuple names):
    """Some properties of the records at the beginning of ``data``; see the stub."""
    cdef list rows = [], values
    cdef Record record
    cdef const uint8_t *text
    cdef Span found
    cdef bytes name
    cdef Py_ssize_t index, count = len(names), at = 0, length = data.shape[0]
    while length - at >= FIXED_BYTES and check_layout(&data[at], length - at, &record):
        text = &data[at] + record.properties.at
        values = [None] * count
        for index in range(count):
            name = names[index]
            found = find_property(
                text,
                record.properties.length,
                <const uint8_t *>PyBytes_AS_STRING(name),
                PyBytes_GET_SIZE(name),
            )
            if found.length:
                values[index] = text[found.at : found.at + found.length].decode("utf-8", "replace")
        rows.append((record.size, values))
        at += record.size
    return rows


cdef class Run:
    """Consecutive entries of one consume queue: offsets ``first`` to ``end``, packed."""

    cdef tuple key
    cdef int64_t first, end
    cdef bytearray entries


cdef class Entries:
    """Consume queue entries, collected in runs of consecutive queue offsets."""

    cdef object _levels_ms
    cdef dict _last
    cdef list _runs

    def __cinit__(self, object levels_ms):
        self._levels_ms = levels_ms
        self._last = {}
        self._runs = []

    cdef bint take(self, const uint8_t *at, Record *record) except -1:
        """Add the record's entry. False: its topic or queue id is invalid."""
        cdef uint8_t name[MAX_TOPIC + 4]
        cdef Py_ssize_t length = record.topic.length, count
        cdef Run run
        cdef bytes key
        cdef uint8_t *entry
        cdef int64_t code
        if length > MAX_TOPIC or record.queue_id < 0:
            return False
        memcpy(name, at + record.topic.at, length)
        put32(name + length, <uint32_t>record.queue_id)
        key = PyBytes_FromStringAndSize(<char *>name, length + 4)
        run = <Run>self._last.get(key)
        if run is None or run.end != record.queue_offset:
            run = self._begin(key, run, record)
            if run is None:
                return False
        code = self._code(at, record)
        count = PyByteArray_GET_SIZE(run.entries)
        PyByteArray_Resize(run.entries, count + ENTRY_BYTES)
        entry = <uint8_t *>PyByteArray_AS_STRING(run.entries) + count
        put64(entry, <uint64_t>record.physical_offset)
        put32(entry + 8, <uint32_t>record.size)
        put64(entry + 12, <uint64_t>code)
        run.end += 1
        return True

    cdef Run _begin(self, bytes key, Run before, Record *record):
        cdef Run run = Run()
        if before is not None:
            run.key = before.key
        else:
            topic = key[: len(key) - 4].decode("utf-8", "replace")
            try:
                validate_topic(topic)
            except ValueError:
                return None
            run.key = (topic, record.queue_id)
        run.first = run.end = record.queue_offset
        run.entries = bytearray()
        self._runs.append(run)
        self._last[key] = run
        return run

    cdef int64_t _code(self, const uint8_t *at, Record *record) except? -1:
        """Return the entry's tags code; of the schedule topic, the delivery time in its place."""
        cdef const uint8_t *text = at + record.properties.at
        cdef Span delay
        if record.topic.length == len(_SCHEDULE) and (
            memcmp(at + record.topic.at, <const char *>_SCHEDULE, record.topic.length) == 0
        ):
            delay = find_property(text, record.properties.length, b"DELAY", 5)
            try:
                level = int(text[delay.at : delay.at + delay.length] or b"0")
            except ValueError:
                level = 0
            if level > 0:
                delay_ms = self._levels_ms[min(level, len(self._levels_ms)) - 1]
                return <int64_t>(record.store_ms + <int64_t>delay_ms)
        return tags_code(text, record.properties.length)

    cdef list runs(self):
        cdef Run run
        return [(run.key, run.first, run.entries) for run in self._runs]


def walk_records(
    const uint8_t[::1] data,
    int64_t base,
    object levels_ms,
    int64_t synced_ms,
    object synced_end,
    *,
    bint with_keys=False,
):
    """Return what to write for the valid records at the beginning of ``data``; see the stub."""
    cdef Keys keys = Keys()
    cdef Entries entries = Entries(levels_ms)
    cdef Record record
    cdef Py_ssize_t at = 0, length = data.shape[0], records = 0
    cdef int64_t last = -1, last_ms = 0, newest_ms = 0, place
    cdef int64_t border = -1 if synced_end is None else synced_end
    cdef const uint8_t *start
    while length - at >= FIXED_BYTES and check_layout(&data[at], length - at, &record):
        start, place = &data[at], base + at
        if record.physical_offset != place or record.store_ms > LLONG_MAX // 2:
            break
        if not 0 <= record.queue_offset <= place // FIXED_BYTES:
            break
        # Where a sector may have been lost, a zero in topic or properties needs a closer check.
        if not (record.store_ms <= synced_ms if border < 0 else place < border):
            if memchr(start + record.topic.at, 0, record.topic.length) != NULL:
                break
            if memchr(start + record.properties.at, 0, record.properties.length) != NULL:
                break
        if body_crc(start + record.body.at, record.body.length) != record.crc:
            break
        if not record.sys_flag & PREPARED and not entries.take(start, &record):
            break
        if with_keys:
            keys.take(start, &record)
        last, last_ms = place, record.store_ms
        newest_ms = max(newest_ms, last_ms)
        records += 1
        at += record.size
    return (at, records, last, last_ms, newest_ms, entries.runs(), *keys.columns())


# --- encoding one

cdef bint read_properties(
    uint8_t *text, Py_ssize_t length, bint keep_wait, Properties *properties
) noexcept nogil:
    """Read what a broker needs from a properties text, and remove the WAIT entries.

    Args:
        text: changed in place.
        length: bytes of the text.
        keep_wait: keep the WAIT entries, which leaves the text unchanged.
        properties: set to the text's new length, whether the sender waits for the flush, and the
            values of the last TAGS and UNIQ_KEY entries that are not empty, which point into it.

    Returns:
        False if a name is one of those for delays, timers and transactions, or the unique id needs
        escapes in JSON; ``text`` and ``properties`` are then incomplete.
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
    properties.unique_id = NULL
    properties.unique_id_length = 0
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
        elif name_length == 8 and value_length and memcmp(at, b"UNIQ_KEY", 8) == 0:
            if not is_plain(value + 1, value_length):
                return False
            properties.unique_id = out + 9
            properties.unique_id_length = value_length
        elif is_special(at, name_length):
            return False
        if out != at:
            memmove(out, at, next - at)
        out += next - at
        at = next
    properties.length = out - text
    return True


cdef inline bint is_plain(const uint8_t *at, Py_ssize_t length) noexcept nogil:
    """Return whether a text has only printable ASCII characters that JSON doesn't escape."""
    cdef Py_ssize_t index
    for index in range(length):
        if not 0x20 <= at[index] < 0x7F or at[index] == 0x22 or at[index] == 0x5C:
            return False
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
    """Return the CRC that a record stores for a body: 31 bits of CRC-32."""
    if length == 0:
        return 0
    cdef uint32_t value = crc32(PyMemoryView_FromMemory(<char *>body, length, PyBUF_READ))
    return value & 0x7FFFFFFF


cdef uint8_t *put_head(uint8_t *at, const Head *head) noexcept nogil:
    """Write a record's fixed fields up to the body's length; return the position of the body."""
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
