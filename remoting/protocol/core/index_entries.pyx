"""Entries of an index file, compiled: adding and checking many at once."""

from cpython.array cimport array, clone
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from remoting.protocol.core.octets cimport get32, get64, put32, put64

cdef enum:
    ENTRY_BYTES = 20
    SLOT_BYTES = 4
    HEADER_BYTES = 40
    MAX_SECONDS = 0x7FFFFFFF

cdef array _LONGS = array("q")


cdef inline int64_t _seconds(int64_t begin_ms, int64_t time_ms) noexcept nogil:
    if begin_ms <= 0 or time_ms <= begin_ms:
        return 0
    return min((time_ms - begin_ms) // 1000, <int64_t>MAX_SECONDS)


def link(
    const int64_t[::1] hashes,
    const int64_t[::1] offsets,
    const int64_t[::1] times_ms,
    const uint8_t[::1] buffer,
    int64_t slots,
    int64_t entries,
    int64_t next_entry,
    int64_t begin_ms,
):
    """Return packed entries, the slots that change, their values, and how many were unused."""
    cdef Py_ssize_t count = hashes.shape[0], size = 16, at, used = 0, place, changed = 0
    if offsets.shape[0] != count or times_ms.shape[0] != count or slots <= 0:
        raise ValueError("columns of keys are equally long")
    if buffer.shape[0] < HEADER_BYTES + slots * SLOT_BYTES:
        raise ValueError("the slots are not in the buffer")
    while size < 2 * count:
        size *= 2
    # A hash table with open addressing: for each changed slot, its index in the columns below,
    # plus 1; 0 is free.
    cdef array known = clone(_LONGS, size, True)
    cdef array found = clone(_LONGS, count, True)
    cdef array newest = clone(_LONGS, count, True)
    cdef long long *table = known.data.as_longlongs
    cdef long long *slot_of = found.data.as_longlongs
    cdef long long *leads = newest.data.as_longlongs
    cdef bytes data = PyBytes_FromStringAndSize(NULL, count * ENTRY_BYTES)
    cdef uint8_t *entry = <uint8_t *>PyBytes_AS_STRING(data)
    cdef int64_t slot, before
    for at in range(count):
        slot = hashes[at] % slots
        if slot < 0:
            slot += slots
        place = <Py_ssize_t>((<uint64_t>slot * 0x9E3779B97F4A7C15u) >> 32) & (size - 1)
        while table[place] and slot_of[table[place] - 1] != slot:
            place = (place + 1) & (size - 1)
        if table[place]:
            before = leads[table[place] - 1]
        else:
            slot_of[changed] = slot
            changed += 1
            table[place] = changed
            before = <int32_t>get32(&buffer[HEADER_BYTES + slot * SLOT_BYTES])
            if not 0 <= before < min(next_entry, entries):
                before = 0
            used += before == 0
        put32(entry, <uint32_t>hashes[at])
        put64(entry + 4, <uint64_t>offsets[at])
        put32(entry + 12, <uint32_t>_seconds(begin_ms, times_ms[at]))
        put32(entry + 16, <uint32_t>before)
        leads[table[place] - 1] = next_entry + at
        if at == 0 and next_entry == 1:
            begin_ms = times_ms[0]
        entry += ENTRY_BYTES
    return data, found[:changed], newest[:changed], used


def set_slots(uint8_t[::1] buffer, const int64_t[::1] slots, const int64_t[::1] numbers):
    """Write entry numbers into slots."""
    cdef Py_ssize_t at, room = (buffer.shape[0] - HEADER_BYTES) // SLOT_BYTES
    for at in range(min(slots.shape[0], numbers.shape[0])):
        if not 0 <= slots[at] < room:
            raise ValueError("the slot is not in the buffer")
        put32(&buffer[HEADER_BYTES + slots[at] * SLOT_BYTES], <uint32_t>numbers[at])


def reaches(const uint8_t[::1] data, int64_t border):
    """Return whether an entry has a physical offset of at least ``border``."""
    cdef Py_ssize_t at
    for at in range(data.shape[0] // ENTRY_BYTES):
        if <int64_t>get64(&data[at * ENTRY_BYTES + 4]) >= border:
            return True
    return False


def chain(const uint8_t[::1] data, int32_t first, int32_t[::1] newest):
    """Return whether the chains of entries are as written; only then change ``newest``."""
    cdef Py_ssize_t at, count = data.shape[0] // ENTRY_BYTES, good = 0
    cdef int64_t slots = newest.shape[0], slot
    if slots == 0:
        return False
    for at in range(count):
        slot = _slot(&data[at * ENTRY_BYTES], slots)
        if <int32_t>get32(&data[at * ENTRY_BYTES + 16]) != newest[slot]:
            break
        newest[slot] = first + <int32_t>at
        good += 1
    if good == count:
        return True
    for at in range(good - 1, -1, -1):
        slot = _slot(&data[at * ENTRY_BYTES], slots)
        newest[slot] = <int32_t>get32(&data[at * ENTRY_BYTES + 16])
    return False


cdef inline int64_t _slot(const uint8_t *entry, int64_t slots) noexcept nogil:
    cdef int64_t slot = <int32_t>get32(entry) % slots
    return slot + slots if slot < 0 else slot


def match(
    const uint8_t[::1] data,
    const int64_t[::1] hashes,
    const int64_t[::1] offsets,
    const int64_t[::1] times_ms,
    int64_t begin_ms,
):
    """Return whether packed entries are those of the given keys, with times since ``begin_ms``."""
    cdef Py_ssize_t at, count = hashes.shape[0]
    cdef const uint8_t *entry
    if data.shape[0] != count * ENTRY_BYTES:
        return False
    if offsets.shape[0] != count or times_ms.shape[0] != count:
        return False
    for at in range(count):
        entry = &data[at * ENTRY_BYTES]
        if <int32_t>get32(entry) != hashes[at] or <int64_t>get64(entry + 4) != offsets[at]:
            return False
        if <int32_t>get32(entry + 12) != _seconds(begin_ms, times_ms[at]):
            return False
    return True
