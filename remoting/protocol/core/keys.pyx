"""Keys of messages on their way into an index file: taken from records, and linked.

The same as ``broker.store.index.batch`` and ``IndexTable.link`` do one by one.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memchr, memcmp, memset

from remoting.protocol.disk.index_file import MAX_SECONDS, header_after, key_hash

from remoting.protocol.core.buffer cimport Buffer
from remoting.protocol.core.octets cimport get32, get64, put32, put64
from remoting.protocol.core.record cimport FIXED_BYTES, Layout, hash_ascii, locate

cdef enum:
    HEADER_BYTES = 40
    SLOT_BYTES = 4
    ENTRY_BYTES = 20
    NAME_END = 1
    ENTRY_END = 2
    TRANSACTION_MASK = 12
    ROLLBACK = 12
    BORN_HOST_V6 = 1 << 4

cdef int64_t MOST_SECONDS = MAX_SECONDS
cdef object _key_hash = key_hash


cdef struct Key:
    int64_t offset
    int64_t time_ms
    int32_t hash


cdef struct Slot:
    int32_t slot
    int32_t number


cdef class KeyBatch:
    """Entries in the order in which they go into files; see ``index.batch.Batch``."""

    def __cinit__(self):
        self._keys = Buffer()

    def __len__(self):
        return self._count

    def rows(self):
        """Hash, physical offset and store time of each."""
        cdef const Key *key = <const Key *>self._keys.data
        return [(key[n].hash, key[n].offset, key[n].time_ms) for n in range(self._count)]

    def link(self, table, Py_ssize_t start, Py_ssize_t stop):
        """What it takes to have some of the entries in a file: see ``IndexTable.link``."""
        cdef Py_buffer view
        if not 0 <= start < stop <= self._count:
            raise IndexError(f"entries {start} to {stop} of {self._count}")
        PyObject_GetBuffer(table.buffer, &view, PyBUF_SIMPLE)
        try:
            if view.len < HEADER_BYTES + SLOT_BYTES * table.slots:
                raise ValueError(f"an index of {view.len} bytes has no {table.slots} slots")
            return linked(
                <const uint8_t *>view.buf, table, <const Key *>self._keys.data + start, stop - start
            )
        finally:
            PyBuffer_Release(&view)


cdef class KeyLinks:
    """What entries change in a file; see ``index_file.Links``."""

    def pages(self, bytearray marked, Py_ssize_t page_bytes):
        """See ``Links``."""
        cdef const Slot *slot = <const Slot *>self._slots.data
        cdef const Slot *end = slot + self._slots.length // sizeof(Slot)
        cdef Py_ssize_t page, count = len(marked)
        found = set()
        while slot < end:
            page = (HEADER_BYTES + <Py_ssize_t>slot.slot * SLOT_BYTES) // page_bytes
            if page < count and marked[page]:
                found.add(page)
            slot += 1
        return found

    def set_slots(self):
        """See ``Links``."""
        cdef Py_buffer view
        cdef const Slot *slot = <const Slot *>self._slots.data
        cdef const Slot *end = slot + self._slots.length // sizeof(Slot)
        cdef Py_ssize_t at
        PyObject_GetBuffer(self._buffer, &view, PyBUF_WRITABLE)
        try:
            while slot < end:
                at = HEADER_BYTES + <Py_ssize_t>slot.slot * SLOT_BYTES
                if at + SLOT_BYTES > view.len:
                    raise IndexError(f"slot {slot.slot} of an index of {view.len} bytes")
                put32(<uint8_t *>view.buf + at, slot.number)
                slot += 1
        finally:
            PyBuffer_Release(&view)


cdef KeyLinks linked(const uint8_t *file, table, const Key *keys, Py_ssize_t count):
    """Links of ``count`` entries, for whose slots ``file`` has room."""
    cdef KeyLinks links = KeyLinks()
    cdef Buffer known = Buffer()
    cdef int64_t slots = table.slots, seconds
    cdef int32_t slot, number, before, used = 0
    cdef Py_ssize_t size = 16, index, place
    cdef Slot *chain
    cdef Slot *changed
    cdef uint8_t *entry
    header = table.header
    cdef int32_t next_entry = header.next_entry
    cdef int32_t bound = min(header.next_entry, table.entries)
    cdef int64_t begin_ms = header.begin_ms
    # The newest entry of each slot, by open addressing: at most half of the places are taken.
    while size < 2 * count:
        size *= 2
    chain = <Slot *>known.room(size * sizeof(Slot))
    memset(chain, 0, size * sizeof(Slot))
    links.entries = PyBytes_FromStringAndSize(NULL, count * ENTRY_BYTES)
    entry = <uint8_t *>PyBytes_AS_STRING(links.entries)
    for index in range(count):
        slot = keys[index].hash % slots
        number = next_entry + <int32_t>index
        place = <Py_ssize_t>(<uint32_t>slot * <uint32_t>2654435761) & (size - 1)
        while chain[place].number and chain[place].slot != slot:
            place = (place + 1) & (size - 1)
        before = chain[place].number
        if before == 0:
            before = <int32_t>get32(file + HEADER_BYTES + <Py_ssize_t>slot * SLOT_BYTES)
            if not 0 < before < bound:
                before = 0
                used += 1
        chain[place].slot = slot
        chain[place].number = number
        seconds = (keys[index].time_ms - begin_ms) // 1000 if begin_ms > 0 else 0
        put32(entry, keys[index].hash)
        put64(entry + 4, keys[index].offset)
        put32(entry + 12, <uint32_t>min(max(seconds, 0), MOST_SECONDS))
        put32(entry + 16, before)
        entry += ENTRY_BYTES
        if index == 0 and next_entry == 1:
            # The first entry of a file is dated from the end of the file before it.
            begin_ms = keys[0].time_ms
    links._slots = Buffer()
    changed = <Slot *>links._slots.room(count * sizeof(Slot))
    for index in range(size):
        if chain[index].number:
            changed[0] = chain[index]
            changed += 1
    links._slots.length = <uint8_t *>changed - links._slots.data
    links._buffer = table.buffer
    links.header = header_after(
        header,
        count,
        first=(keys[0].offset, keys[0].time_ms),
        last=(keys[count - 1].offset, keys[count - 1].time_ms),
        used_slots=used,
    )
    return links


def walk(data, int64_t base):
    """The keys of the records at the beginning of ``data``, which lies at ``base`` of the log.

    Returns:
        A ``KeyBatch``, and how many bytes the whole records take.
    """
    cdef Py_buffer view
    cdef KeyBatch batch = KeyBatch()
    cdef const uint8_t *at
    cdef const uint8_t *start
    cdef Py_ssize_t left, size
    cdef Layout layout
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        start = at = <const uint8_t *>view.buf
        left = view.len
        while left >= FIXED_BYTES:
            size = get32(at)
            if size < FIXED_BYTES or <int64_t>get64(at + 28) != base + (at - start):
                break
            if not locate(at, left, &layout):
                break
            if layout.sys_flag & TRANSACTION_MASK != ROLLBACK:
                take_keys(batch, at, &layout, base + (at - start))
            at += size
            left -= size
        return batch, at - start
    finally:
        PyBuffer_Release(&view)


cdef int take_keys(
    KeyBatch batch, const uint8_t *record, const Layout *layout, int64_t offset
) except -1:
    """Add the keys of a record: its unique id, then each part of its KEYS."""
    cdef const uint8_t *at = record + layout.topic_end + 2
    cdef const uint8_t *end = record + layout.end
    cdef const uint8_t *stop
    cdef const uint8_t *unique = NULL
    cdef const uint8_t *own = NULL
    cdef Py_ssize_t unique_length = 0, own_length = 0
    while at < end:
        stop = <const uint8_t *>memchr(at, ENTRY_END, end - at)
        if stop == NULL:
            stop = end
        # Of equal names the last one with a value counts.
        if stop - at > 9 and memcmp(at, b"UNIQ_KEY\x01", 9) == 0:
            unique = at + 9
            unique_length = stop - unique
        elif stop - at > 5 and memcmp(at, b"KEYS\x01", 5) == 0:
            own = at + 5
            own_length = stop - own
        at = stop + 1
    if unique_length:
        add_key(batch, record, layout, offset, unique, unique_length)
    end = own + own_length
    while own < end:
        stop = <const uint8_t *>memchr(own, b" ", end - own)
        if stop == NULL:
            stop = end
        if stop > own:
            add_key(batch, record, layout, offset, own, stop - own)
        own = stop + 1
    return 0


cdef int add_key(
    KeyBatch batch, const uint8_t *record, const Layout *layout, int64_t offset,
    const uint8_t *key, Py_ssize_t length,
) except -1:
    cdef Key *added = <Key *>batch._keys.room(sizeof(Key))
    cdef const uint8_t *topic = record + layout.topic_at
    cdef Py_ssize_t topic_length = layout.topic_end - layout.topic_at
    cdef uint32_t value = 0
    cdef int32_t signed
    if hash_ascii(topic, topic_length, &value) and hash_ascii(b"#", 1, &value) and hash_ascii(
        key, length, &value
    ):
        signed = <int32_t>value
        # As Java's Math.abs, whose one result below zero counts as 0.
        added.hash = 0 if value == 0x80000000 else -signed if signed < 0 else signed
    else:
        text = PyBytes_FromStringAndSize(<const char *>topic, topic_length)
        own = PyBytes_FromStringAndSize(<const char *>key, length)
        added.hash = _key_hash((text + b"#" + own).decode("utf-8", "replace"))
    added.offset = offset
    added.time_ms = <int64_t>get64(record + 56 + (12 if layout.sys_flag & BORN_HOST_V6 else 0))
    batch._keys.length += sizeof(Key)
    batch._count += 1
    return 0
