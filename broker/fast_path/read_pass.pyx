"""The read pass: handles the frames of one socket read; see ``broker.fast_path``.

It handles common requests in all three codecs. Any other frame is passed to the peer's
``work_slow``, after everything before it has been flushed.

A pass gathers records in one buffer, entries in one buffer per queue, and answers in one buffer.
``Gathered.flush`` writes them in the order of the slow path: records, then entries, then answers. A
message is visible to consumers only when its entry has been written. Everything that can fail is
done before a message is accepted: ``make_room`` reserves room for its record and its entry, or
returns false.
"""

from cpython.array cimport array
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memchr, memcpy

from functools import partial
from time import perf_counter

from broker.delivery.redelivery import REDELIVERY_BYTES
from broker.store.limits import MAX_PULL_BYTES, MAX_PULL_MESSAGES, SECTOR_BYTES
from remoting.protocol.frame import GATHER_BYTES, with_code
from remoting.protocol import limits as protocol_limits
from remoting.protocol.codes import RequestCode

from remoting.protocol.core.answer cimport AnswerTemplate, Buffer, Fill
from remoting.protocol.core.header cimport (
    BORN_TIMESTAMP, COMMIT_OFFSET, PROPERTIES, PULL_COMMIT_OFFSET, QUEUE_OFFSET, Codec, Header,
    Kind, Text, key_of, number_of, scan, unescape,
)
from remoting.protocol.core.octets cimport get16, get32, get64, put16, put32, put64
from remoting.protocol.core.record cimport (
    FIXED_BYTES, Head, Properties, body_crc, java_hash, put_head, read_properties, tags_code,
)
from remoting.protocol.core.signed cimport Signed, put_signed_values

cdef extern from "Python.h":
    int PyBUF_READ

cdef extern from *:
    """
    #include <string.h>
    extern void *memmem(const void *, size_t, const void *, size_t);
    """
    void *memmem(const void *, size_t, const void *, size_t) noexcept nogil

cdef enum:
    PULL_MESSAGE = 11
    UPDATE_CONSUMER_OFFSET = 15
    LITE_PULL_MESSAGE = 361
    PREFIX_BYTES = 8
    ENTRY_BYTES = 20
    ELEMENT_BYTES = 22
    HOST_BYTES_V4 = 8
    FLAG_ONEWAY = 2
    COUNT_COLUMNS = 3
    FRAMES_BETWEEN_CHECKS = 16
    # Filters with at most this many tags codes compare them one by one; others use a set.
    FEW_CODES = 16
    # Gathered records are stored when they reach this size, while they are in the CPU's cache.
    STAGE_BYTES = 256 * 1024
    # Larger bodies take the slow path, which doesn't copy them more often.
    LARGEST_BODY = 256 * 1024
    # The result of handling a frame: SLOW: it takes the slow path; LIGHT: done; HEAVY: done, but it
    # took long or has a large answer, so check the time and the connection's backlog.
    SLOW = 0
    LIGHT = 1
    HEAVY = 2

# The slots in the key of a send's plan: all but the producer group, the default topic, the born
# timestamp, the properties and the broker name.
cdef uint32_t SEND_KEY = 0x1FFF & ~(1 | 1 << 2 | 1 << 6 | 1 << 8)
# The slots in the key of a pull's plan: all but the two offsets, the broker name and the proxy's.
cdef uint32_t PULL_KEY = 0x3FFF & ~(1 << 3 | 1 << 6 | 1 << 11)
# The slots in the key of a commit's plan: group, topic and queue.
cdef uint32_t COMMIT_KEY = 0b0111

cdef Py_ssize_t MAX_HEADER_BYTES = protocol_limits.MAX_HEADER_BYTES
# The slow path decides about longer ones, which may leave no room for those of a retry.
cdef Py_ssize_t SHORT_PROPERTIES_BYTES = (
    protocol_limits.MAX_PROPERTIES_BYTES - REDELIVERY_BYTES - protocol_limits.MAX_TOPIC_LENGTH
)
cdef Py_ssize_t LOST_BYTES = SECTOR_BYTES
cdef Py_ssize_t MAX_BATCH_MESSAGES = protocol_limits.MAX_BATCH_MESSAGES
cdef int64_t PULL_BYTES = MAX_PULL_BYTES
cdef int64_t PULL_MESSAGES = MAX_PULL_MESSAGES
cdef Py_ssize_t GATHERED = GATHER_BYTES

MAX_PLANS = 16_384
"""Plans cached for each family of requests, about 1 KiB each: enough for ten thousand queues. When
the cache is full, it is cleared."""


cdef struct Request:
    Header header
    const uint8_t *text
    Py_ssize_t text_length
    const uint8_t *body
    Py_ssize_t body_length


cdef class Plans:
    """A cache of the plans of one family of requests, by the bytes of their repeating fields.

    Args:
        slots: the header slots of these fields, as a bit mask.
        make: returns a plan for codec, header bytes and connection; None for the slow path.
        max_plans: the most plans that are cached.
    """

    cdef uint32_t _slots
    cdef object _make
    cdef Py_ssize_t _max_plans
    cdef dict _cached

    def __cinit__(self, uint32_t slots, make, Py_ssize_t max_plans):
        self._slots = slots
        self._make = make
        self._max_plans = max_plans
        self._cached = {}

    cdef int forget(self) except -1:
        self._cached.clear()
        return 0

    cdef object find(self, const Request *request, connection):
        key = key_of(&request.header, self._slots)
        if key is None:
            return None
        plan = self._cached.get(key)
        if plan is None:
            text = PyBytes_FromStringAndSize(<const char *>request.text, request.text_length)
            plan = self._make(<int>request.header.codec, text, connection)
            if plan is not None:
                if len(self._cached) >= self._max_plans:
                    self._cached.clear()
                self._cached[key] = plan
        return plan


cdef class Run:
    """The messages of one queue in this pass."""

    cdef object queue
    cdef object place
    cdef int32_t queue_id
    cdef int64_t next_offset
    cdef Py_ssize_t room
    cdef Buffer entries
    cdef bytes topic

    def __cinit__(self, queue):
        self.queue = queue
        self.queue_id = queue.queue_id
        self.entries = Buffer()
        self.topic = bytes((len(queue.topic_bytes),)) + queue.topic_bytes


cdef class Gathered:
    """The records, entries and answers gathered in a pass.

    Attributes:
        answers: frames that may be sent once everything gathered before is stored.
        position: the physical offset of the next record.
        waits: whether answers wait for the disk or a slave, unless a message has WAIT=false.
    """

    cdef readonly bint waits
    cdef object _host, _appender, _connection
    cdef bytes _born_host, _store_host
    cdef list _runs, _pieces
    cdef Buffer answers, _records, _if_durable, _if_timed_out
    cdef int64_t position, _begin, _limit, _store_ms, _sent_bytes
    cdef Py_ssize_t _staged, _held

    def __cinit__(self, host):
        self._host = host
        self._appender = host.appender
        self._store_host = host.packed_host
        self.waits = host.appender.waits
        self._runs = []
        self._pieces = []
        self.answers = Buffer()
        self._records = Buffer()
        self._if_durable = Buffer()
        self._if_timed_out = Buffer()
        self._limit = -1

    cdef int begin(self, connection, bytes born_host) except -1:
        """Set the connection whose frames are handled; None after the pass."""
        self._connection = connection
        self._born_host = born_host
        return 0

    # --- records and entries

    cdef bint make_room(self, Run run, Py_ssize_t count, int64_t size) except -1:
        """Reserve room for ``count`` records of ``size`` bytes in total; false if there is none.

        May store what was gathered.
        """
        try:
            if run.room < count or self.position + size > self._limit:
                if self.position + size > self._limit and not self._appender.takes(size):
                    return False
                if run.room < count and not self._open(run, count):
                    return False
                if self.position + size > self._limit:
                    self._store_staged()
                    self._limit = -1
                    self.position, self._limit, self._store_ms = self._appender.reserve(size)
                    self._begin = self.position
            elif self._records.length + size > STAGE_BYTES:
                self._store_staged()
        except OSError:
            return False
        return True

    cdef bint _open(self, Run run, Py_ssize_t count) except -1:
        if run.room or run.entries.length:
            self.store()
        run.next_offset, run.room, run.place = self._appender.open(run.queue, count)
        self._runs.append(run)
        return run.room >= count

    cdef int put(
        self, Run run, Head *head, int64_t code, const uint8_t *body, const uint8_t *text,
        Py_ssize_t text_length,
    ) except -1:
        """Add a message's record and entry; ``make_room`` has reserved room for them."""
        cdef uint8_t *at = self._records.room(head.size)
        cdef uint8_t *entry = run.entries.room(ENTRY_BYTES)
        cdef Py_ssize_t topic_length = PyBytes_GET_SIZE(run.topic)
        head.queue_id = run.queue_id
        head.queue_offset = run.next_offset
        head.position = self.position
        head.born_host = <const uint8_t *>PyBytes_AS_STRING(self._born_host)
        head.store_ms = self._store_ms
        head.store_host = <const uint8_t *>PyBytes_AS_STRING(self._store_host)
        at = put_head(at, head)
        memcpy(at, body, head.body_length)
        at += head.body_length
        memcpy(at, PyBytes_AS_STRING(run.topic), topic_length)
        at += topic_length
        put16(at, text_length)
        memcpy(at + 2, text, text_length)
        self._records.length += head.size
        put64(entry, self.position)
        put32(entry + 8, head.size)
        put64(entry + 12, code)
        run.entries.length += ENTRY_BYTES
        run.next_offset += 1
        run.room -= 1
        self.position += head.size
        self._staged += 1
        return 0

    cdef void count_sent(self, Py_ssize_t body_bytes) noexcept:
        """Count the body of a request; ``_store_staged`` adds the sum to the broker's counters."""
        self._sent_bytes += body_bytes

    cdef int _store_staged(self) except -1:
        """Store the gathered records; more may follow in the reserved room."""
        cdef Py_ssize_t count = self._staged
        cdef int64_t body_bytes = self._sent_bytes
        if count:
            self._staged = self._sent_bytes = 0
            records = PyMemoryView_FromMemory(
                <char *>self._records.data, self._records.length, PyBUF_READ
            )
            self._appender.store(self._begin, records, count)
            self._records.clear()
            self._begin = self.position
            self._host.stored(count, body_bytes)
        return 0

    cdef int store(self) except -1:
        """Store what was gathered and make it visible; the reserved room is released."""
        cdef Run run
        if not self._runs:
            return 0
        self._limit = -1
        self._store_staged()
        runs, self._runs = self._runs, []
        for run in runs:
            run.room = 0
            place, run.place = run.place, None
            if run.entries.length:
                self._appender.publish(run.queue, place, run.entries.take(), self.position)
        return 0

    # --- answers

    cdef int answer_late(
        self, AnswerTemplate if_durable, AnswerTemplate if_timed_out, const Fill *fill
    ) except -1:
        """Answer when the gathered messages are on disk.

        The answer is ``if_durable``, or ``if_timed_out`` after ``syncFlushTimeout``.
        """
        if_durable.write(self._if_durable, fill)
        if_timed_out.write(self._if_timed_out, fill)
        self._held += 1
        return 0

    cdef int add_pieces(self, list pieces) except -1:
        """Add the pieces of an answer's frame after the answers so far."""
        if self.answers.length:
            self._pieces.append(self.answers.take())
        self._pieces += pieces
        return 0

    cdef int post(self) except -1:
        """Send the answers that are ready; everything gathered must be stored before."""
        self.add_pieces([])
        if self._pieces:
            pieces, self._pieces = self._pieces, []
            self._connection.send_pieces(pieces)
        return 0

    cdef int flush(self) except -1:
        """Store everything gathered, then send the answers; some wait for the disk."""
        self.store()
        self.post()
        if self._held:
            held, self._held = self._held, 0
            self._connection.defer_answers(held)
            answer = partial(
                _answer, self._connection, held, self._if_durable.take(), self._if_timed_out.take()
            )
            self._host.when_durable(self.position, answer)
        return 0


def _answer(connection, answers, if_durable, if_timed_out, ack):
    """Send answers that waited for the disk or a slave; ``ack`` is 0 or the code of the failure."""
    connection.send_pieces([if_durable if ack == 0 else with_code(if_timed_out, ack)])
    connection.complete_answers(answers)


cdef int check_count(array count) except -1:
    if count.typecode != "q" or len(count) != COUNT_COLUMNS:
        raise ValueError("a count is an array of messages, bytes and requests")
    return 0


cdef inline int add(array count, int64_t messages, int64_t size) except -1:
    """Add a request to a count of ``broker.traffic``, which is never resized."""
    count.data.as_longlongs[0] += messages
    count.data.as_longlongs[1] += size
    count.data.as_longlongs[2] += 1
    return 0


cdef class SendPlan:
    """What all sends with the same repeating fields have in common; see ``read_pass.pyi``."""

    # Whether it is for single messages without a quota, as nearly all are.
    cdef bint is_usual
    cdef object meter

    cdef object queue
    cdef Run _run
    cdef AnswerTemplate answer
    cdef AnswerTemplate late_answer
    # The same for messages with a unique id.
    cdef AnswerTemplate named_answer
    cdef AnswerTemplate late_named_answer
    cdef int32_t flag
    cdef int32_t sys_flag
    cdef int32_t reconsume_times
    cdef bint batch
    cdef array _count

    def __init__(
        self, queue, answers, *, flag, sys_flag, reconsume_times, batch, array count, meter=None
    ):
        check_count(count)
        self._count = count
        self.queue = queue
        (self.answer, self.late_answer), (self.named_answer, self.late_named_answer) = answers
        self.flag = flag
        self.sys_flag = sys_flag
        self.reconsume_times = reconsume_times
        self.batch = batch
        self.meter = meter
        self.is_usual = not batch and meter is None

    cdef int count_sent(self, int64_t messages, int64_t size) except -1:
        """Count a request for the topic's statistics."""
        return add(self._count, messages, size)

    cdef Run run_in(self, dict runs):
        """Return the run of the queue, which all plans for that queue share."""
        if self._run is None:
            self._run = runs.get(self.queue)
            if self._run is None:
                self._run = runs[self.queue] = Run(self.queue)
        return self._run


cdef class Sends:
    """Handles sends of single messages and batches.

    Args:
        host: a ``Host``.
        gathered: gathers messages and answers.
        max_plans: the most plans that are cached.
    """

    cdef Gathered _gathered
    cdef Plans _plans
    cdef dict _runs
    cdef Buffer _text, _positions
    cdef bytes _cluster
    cdef int64_t _max_body

    def __cinit__(self, host, Gathered gathered, Py_ssize_t max_plans):
        self._gathered = gathered
        self._plans = Plans(SEND_KEY, host.plan_send, max_plans)
        self._runs = {}
        self._text = Buffer()
        self._positions = Buffer()
        self._cluster = host.cluster
        self._max_body = host.max_body

    cdef int forget(self) except -1:
        """Drop all plans and runs, after topics or queues have changed."""
        self._plans.forget()
        self._runs.clear()
        return 0

    cdef int serve(self, const Request *request, connection) except -1:
        """Handle a send; return SLOW if it takes the slow path."""
        cdef const Text *sent = &request.header.slots[PROPERTIES]
        cdef Py_ssize_t text_length = sent.length
        cdef uint8_t *text
        cdef Head head
        cdef SendPlan plan
        cdef Run run
        if not number_of(&request.header, BORN_TIMESTAMP, &head.born_ms):
            return SLOW
        plan = self._plans.find(request, connection)
        if plan is None:
            return SLOW
        run = plan.run_in(self._runs)
        # Room for the property CLUSTER as well, with a separator before it.
        self._text.length = 0
        text = self._text.room(text_length + PyBytes_GET_SIZE(self._cluster) + 1)
        if sent.kind == Kind.ESCAPED:
            text_length = unescape(sent.at, text_length, text)
            if text_length < 0:
                return SLOW
        elif sent.kind == Kind.TEXT:
            memcpy(text, sent.at, text_length)
        elif sent.kind != Kind.ABSENT:
            return SLOW
        if may_look_lost(text, text_length):
            return SLOW
        head.sys_flag = plan.sys_flag
        head.reconsume_times = plan.reconsume_times
        if plan.is_usual:
            return self._one(plan, run, request, &head, text, text_length)
        if plan.meter is None:
            return self._batch(plan, run, request, &head, text, text_length)
        return self._metered(plan, run, request, &head, text, text_length)

    cdef int _metered(
        self, SendPlan plan, Run run, const Request *request, Head *head, uint8_t *text,
        Py_ssize_t text_length,
    ) except -1:
        """Handle a send to a topic with a quota; if it is used up, the slow path refuses it."""
        cdef long long *counted = plan._count.data.as_longlongs
        cdef int64_t messages = counted[0], size = counted[1]
        cdef int done
        if not plan.meter.has_room():
            return SLOW
        if plan.batch:
            done = self._batch(plan, run, request, head, text, text_length)
        else:
            done = self._one(plan, run, request, head, text, text_length)
        if done != SLOW:
            plan.meter.charge(counted[0] - messages, counted[1] - size)
        return done

    cdef Py_ssize_t _with_cluster(self, uint8_t *text, Py_ssize_t length) noexcept:
        """Append the property CLUSTER to a properties text; return the new length."""
        cdef Py_ssize_t more = PyBytes_GET_SIZE(self._cluster)
        if length and text[length - 1] != 2:
            text[length] = 2
            length += 1
        memcpy(text + length, PyBytes_AS_STRING(self._cluster), more)
        return length + more

    cdef int _one(
        self, SendPlan plan, Run run, const Request *request, Head *head, uint8_t *text,
        Py_ssize_t text_length,
    ) except -1:
        cdef Gathered gathered = self._gathered
        cdef Properties properties
        cdef Py_ssize_t length = request.body_length
        cdef int64_t number, position, code
        if length > self._max_body or length > LARGEST_BODY:
            return SLOW
        if not read_properties(text, text_length, False, &properties):
            return SLOW
        text_length = self._with_cluster(text, properties.length)
        if text_length > SHORT_PROPERTIES_BYTES:
            return SLOW
        head.size = FIXED_BYTES - 1 + length + PyBytes_GET_SIZE(run.topic) + text_length
        if not gathered.make_room(run, 1, head.size):
            return SLOW
        head.crc = body_crc(request.body, length)
        head.flag = plan.flag
        head.body_length = length
        position, number = gathered.position, run.next_offset
        code = <int32_t>java_hash(properties.tag, properties.tag_length, 0)
        gathered.put(run, head, code, request.body, text, text_length)
        gathered.count_sent(length)
        plan.count_sent(1, head.size)
        self._answer(plan, &request.header, &properties, number, &position, 1)
        return LIGHT

    cdef int _answer(
        self, SendPlan plan, const Header *header, const Properties *properties, int64_t number,
        const int64_t *positions, Py_ssize_t count,
    ) except -1:
        cdef Fill fill
        cdef bint is_named = properties.unique_id_length > 0
        cdef AnswerTemplate answer = plan.named_answer if is_named else plan.answer
        cdef AnswerTemplate late
        if header.flag != 0:
            return 0
        fill.opaque = header.opaque
        fill.numbers[0] = number
        fill.positions = positions
        fill.count = count
        fill.text = properties.unique_id
        fill.text_length = properties.unique_id_length
        fill.body_length = 0
        if properties.waits and self._gathered.waits:
            late = plan.late_named_answer if is_named else plan.late_answer
            return self._gathered.answer_late(answer, late, &fill)
        return answer.write(self._gathered.answers, &fill)

    # --- batches

    cdef int _batch(
        self, SendPlan plan, Run run, const Request *request, Head *head, uint8_t *text,
        Py_ssize_t text_length,
    ) except -1:
        cdef const uint8_t *body = request.body
        cdef Properties common
        cdef Py_ssize_t count, unique_at, length = request.body_length
        cdef int64_t size = 0, number
        # The limit is for the bodies alone. Near it, let the slow path count them.
        if length > self._max_body:
            return SLOW
        if not read_properties(text, text_length, True, &common):
            return SLOW
        # A message of the batch may be a timer message, which the slow path refuses.
        if memmem(body, length, b"TIMER_DEL", 9) != NULL:
            return SLOW
        unique_at = common.unique_id - text if common.unique_id_length else 0
        self._text.length = self._with_cluster(text, text_length)
        count = measure(run, self._text.length, body, length, &size)
        if count <= 0 or not self._gathered.make_room(run, count, size):
            return SLOW
        number = run.next_offset
        self._put_elements(run, head, &common, body, count)
        self._gathered.count_sent(length)
        plan.count_sent(count, size)
        positions = <const int64_t *>self._positions.data
        # The buffer may have moved while it grew; the batch's properties are at its beginning.
        if common.unique_id_length:
            common.unique_id = self._text.data + unique_at
        self._answer(plan, &request.header, &common, number, positions, count)
        return HEAVY

    cdef int _put_elements(
        self, Run run, Head *head, const Properties *common, const uint8_t *body,
        Py_ssize_t count,
    ) except -1:
        """Add the messages of a measured batch, each with the batch's properties after its own."""
        cdef Gathered gathered = self._gathered
        cdef Py_ssize_t index, own_length, text_length
        cdef Py_ssize_t common_length = self._text.length
        cdef Py_ssize_t fixed = FIXED_BYTES - 1 + PyBytes_GET_SIZE(run.topic)
        cdef uint8_t *text
        cdef int64_t code
        cdef int64_t common_code = <int32_t>java_hash(common.tag, common.tag_length, 0)
        self._positions.length = 0
        self._positions.room(8 * count)
        for index in range(count):
            head.flag = <int32_t>get32(body + 12)
            head.body_length = get32(body + 16)
            body += 20
            own_length = get16(body + head.body_length)
            # Build the properties after the batch's own in the buffer, as ``properties.join`` does.
            text = self._text.room(own_length + 1 + common_length)
            memcpy(text, body + head.body_length + 2, own_length)
            text_length = own_length
            if own_length and text[own_length - 1] != 2:
                text[own_length] = 2
                text_length += 1
            memcpy(text + text_length, self._text.data, common_length)
            text_length += common_length
            code = common_code
            if common.tag_length == 0:
                code = tags_code(text, own_length)
            head.size = fixed + head.body_length + text_length
            head.crc = body_crc(body, head.body_length)
            (<int64_t *>self._positions.data)[index] = gathered.position
            gathered.put(run, head, code, body, text, text_length)
            body += head.body_length + 2 + own_length
        return 0


cdef inline bint may_look_lost(const uint8_t *text, Py_ssize_t length) noexcept nogil:
    """Return whether recovery may take properties for lost: the slow path decides."""
    return length >= LOST_BYTES and memchr(text, 0, length) != NULL


cdef Py_ssize_t measure(
    Run run, Py_ssize_t text_length, const uint8_t *body, Py_ssize_t length, int64_t *size
) noexcept:
    """Return the number of messages in a batch, and add the size of their records to ``size``.

    The lengths in a batch are checked only here. Returns -1 if the slow path must refuse it.
    """
    cdef Py_ssize_t count = 0, at = 0
    cdef Py_ssize_t body_length, properties_length, joined
    while at < length:
        if length - at < ELEMENT_BYTES or count == MAX_BATCH_MESSAGES:
            return -1
        body_length = get32(body + at + 16)
        if body_length > length - at - ELEMENT_BYTES:
            return -1
        at += 20 + body_length
        properties_length = get16(body + at)
        at += 2
        if properties_length > length - at:
            return -1
        if may_look_lost(body + at, properties_length):
            return -1
        at += properties_length
        joined = properties_length + text_length
        joined += properties_length > 0 and body[at - 1] != 2
        if joined > SHORT_PROPERTIES_BYTES:
            return -1
        size[0] += FIXED_BYTES - 1 + body_length + PyBytes_GET_SIZE(run.topic) + joined
        count += 1
    return count


cdef class PullPlan:
    """What all pulls with the same repeating fields have in common; see ``read_pass.pyi``."""

    cdef readonly object header, codes, subscription, meter, account
    cdef readonly int64_t max_count, max_bytes
    cdef array _taken
    cdef int64_t _few[FEW_CODES]
    cdef Py_ssize_t _count

    def __init__(self, header, codes, limits, array count, meter=None, account=None):
        check_count(count)
        self._taken = count
        self.meter = meter
        self.account = account
        self.header = header
        self.max_count = max(1, min(limits[0], PULL_MESSAGES))
        self.max_bytes = min(limits[1], PULL_BYTES)
        self.decide(codes, None)

    def decide(self, codes, subscription):
        self.codes = codes
        self.subscription = subscription
        self._count = -1
        if codes is not None and len(codes) <= FEW_CODES:
            self._count = 0
            for code in codes:
                self._few[self._count] = code
                self._count += 1

    cdef bint takes(self, int64_t code) except -1:
        cdef Py_ssize_t index
        if self._count < 0:
            return self.codes is None or code in self.codes
        for index in range(self._count):
            if self._few[index] == code:
                return True
        return False


cdef class Pulls:
    """Handles pulls.

    Args:
        host: a ``Host``.
        gathered: gathers answers.
        max_plans: the most plans that are cached.
    """

    cdef object _host
    cdef Gathered _gathered
    cdef Plans plans
    cdef list _found
    cdef Buffer _runs
    cdef Py_ssize_t _pulls, _messages
    cdef int64_t _bytes, _matched

    def __cinit__(self, host, Gathered gathered, Py_ssize_t max_plans):
        self._host = host
        self._gathered = gathered
        self.plans = Plans(PULL_KEY, host.plan_pull, max_plans)
        self._found = host.found
        self._runs = Buffer()

    cdef int serve(self, const Request *request, connection) except -1:
        """Handle a pull; return SLOW if it takes the slow path."""
        cdef const Header *header = &request.header
        cdef int64_t offset = 0, commit_offset = 0
        cdef PullPlan plan
        if header.flag != 0 or not number_of(header, QUEUE_OFFSET, &offset):
            return SLOW
        if not number_of(header, PULL_COMMIT_OFFSET, &commit_offset):
            return SLOW
        plan = self.plans.find(request, connection)
        if plan is None:
            return SLOW
        if plan.meter is not None:
            return self._metered(request, plan, offset, commit_offset, connection)
        return self._serve(request, plan, offset, commit_offset, connection)

    cdef int _metered(
        self, const Request *request, PullPlan plan, int64_t offset, int64_t commit_offset,
        connection,
    ) except -1:
        """Handle a pull from a topic with a quota; if it is used up, the slow path refuses it."""
        cdef long long *counted = plan._taken.data.as_longlongs
        cdef int64_t messages = counted[0], size = counted[1]
        cdef int done
        if not plan.meter.has_room():
            return SLOW
        done = self._serve(request, plan, offset, commit_offset, connection)
        if done != SLOW:
            plan.meter.charge(counted[0] - messages, counted[1] - size)
        return done

    cdef int _serve(
        self, const Request *request, PullPlan plan, int64_t offset, int64_t commit_offset,
        connection,
    ) except -1:
        cdef const Header *header = &request.header
        if not self._host.begin_pull(plan, offset, commit_offset, connection):
            return SLOW
        # The pull may be for messages that were sent earlier in this pass.
        self._gathered.store()
        window = self._host.window(plan)
        if window is None or not self._take(plan, header, window, offset):
            pieces = self._host.pull(<int>header.codec, plan, header.opaque, connection)
            if pieces is None:
                return SLOW
            self._gathered.add_pieces(pieces)
        return HEAVY

    cdef bint _take(self, PullPlan plan, const Header *header, window, int64_t offset) except -1:
        """Answer a pull from a window; false if ``Host.pull`` must run it."""
        cdef int64_t total = 0
        cdef int64_t scanned = self._choose(plan, window, len(window.log), &total)
        cdef const int64_t *run = <const int64_t *>self._runs.data
        cdef int64_t begin, end
        cdef Py_ssize_t index
        if scanned == 0:
            return False
        if window.is_old:
            begin, end = run[0], run[1]
            for index in range(2, self._runs.length // 8, 2):
                end = max(end, run[index + 1])
            begin, end = begin + <int64_t>window.base, end + <int64_t>window.base
            if not self._host.may_take(window, scanned, begin, end):
                return False
        self._answer(header, window, offset + scanned, total)
        add(plan._taken, self._matched, total)
        self._pulls += 1
        self._messages += self._matched
        self._bytes += total
        return True

    cdef int64_t _choose(
        self, PullPlan plan, window, Py_ssize_t log_bytes, int64_t *total
    ) except -1:
        """Choose messages, as runs of adjacent records in ``_runs``.

        Returns the number of entries read, or 0 if none matched or an entry is invalid. Entries are
        checked only here: a record must not begin before the first one, and must end within the
        window's part of the log file.
        """
        cdef Py_buffer view
        cdef const uint8_t *entry
        cdef const uint8_t *end
        cdef int64_t base = window.base
        cdef int64_t first, place, size, matched = 0, scanned = 0, run_end = -1
        cdef int64_t *run = NULL
        self._runs.length = 0
        PyObject_GetBuffer(window.entries, &view, PyBUF_SIMPLE)
        try:
            entry = <const uint8_t *>view.buf
            end = entry + view.len
            first = <int64_t>get64(entry) - base if view.len >= ENTRY_BYTES else -1
            while end - entry >= ENTRY_BYTES and matched < plan.max_count:
                place = <int64_t>get64(entry) - base
                size = <int32_t>get32(entry + 8)
                if matched and total[0] + size > plan.max_bytes:
                    break
                if first < 0 or place < first or size < FIXED_BYTES or place > log_bytes - size:
                    return 0
                scanned += 1
                if plan.takes(<int64_t>get64(entry + 12)):
                    if place != run_end:
                        run = <int64_t *>self._runs.room(16)
                        self._runs.length += 16
                        run[0] = place
                    run_end = run[1] = place + size
                    matched += 1
                    total[0] += size
                entry += ENTRY_BYTES
        finally:
            PyBuffer_Release(&view)
        self._matched = matched
        return scanned if matched else 0

    cdef int _answer(
        self, const Header *header, window, int64_t following, int64_t total
    ) except -1:
        """Answer with the chosen runs, copied after the header, or as slices if they are large."""
        cdef Buffer answers = self._gathered.answers
        cdef Py_buffer view
        cdef Fill fill
        cdef const int64_t *run = <const int64_t *>self._runs.data
        cdef const int64_t *end = run + self._runs.length // 8
        cdef uint8_t *out
        fill.opaque = header.opaque
        fill.numbers[0] = following
        fill.numbers[1] = window.low
        fill.numbers[2] = window.high
        fill.count = fill.text_length = 0
        fill.body_length = total
        (<AnswerTemplate>self._found[<int>header.codec]).write(answers, &fill)
        log = window.log
        if total >= GATHERED * ((end - run) // 2):
            pieces = []
            while run < end:
                pieces.append(log[run[0]:run[1]])
                run += 2
            return self._gathered.add_pieces(pieces)
        out = answers.room(total)
        PyObject_GetBuffer(log, &view, PyBUF_SIMPLE)
        try:
            while run < end:
                memcpy(out, <const uint8_t *>view.buf + run[0], run[1] - run[0])
                out += run[1] - run[0]
                run += 2
        finally:
            PyBuffer_Release(&view)
        answers.length += total
        return 0

    cdef int report(self) except -1:
        """Report the pulls that were answered from windows to the broker's counters."""
        if self._pulls:
            self._host.pulled(self._pulls, self._messages, self._bytes)
            self._pulls = self._messages = self._bytes = 0
        return 0


cdef class ReadPass:
    """The fast path of one broker.

    Args:
        host: a ``Host``.
        max_frame_bytes: the largest frame, its length field included.
        max_plans: the most plans that are cached for each family of requests.

    Attributes:
        frames: the number of frames handled here, without those of the slow path.
        on_served: called after a pass for each family of requests with its code, the number of
            requests, and the seconds that they took together; for metrics.
    """

    cdef readonly Py_ssize_t frames
    cdef public object on_served
    cdef object _host, _peer, _connection, _rules
    cdef Gathered _gathered
    cdef Sends _sends
    cdef Pulls _pulls
    cdef Plans _commits
    cdef list _committed
    cdef bint _stores_v4, _takes_sends, _takes_msgpack, _is_guarded
    cdef Buffer _signed_values
    cdef bytes _born_host
    cdef Py_ssize_t _longest, _pulls_served, _commits_served
    cdef double _slow_seconds
    cdef Request _request

    def __init__(self, host, *, max_frame_bytes, max_plans=MAX_PLANS):
        self._host = host
        self._stores_v4 = host.stores_v4
        self._is_guarded = host.guard is not None
        self._signed_values = Buffer()
        self._gathered = Gathered(host)
        self._sends = Sends(host, self._gathered, max_plans)
        self._pulls = Pulls(host, self._gathered, max_plans)
        self._commits = Plans(COMMIT_KEY, host.plan_commit, max_plans)
        self._committed = host.committed
        self._longest = max_frame_bytes - 4

    def work(self, peer, buffer, Py_ssize_t position, Py_ssize_t stop, may_go_on):
        """Handle the frames of ``buffer`` from ``position`` on.

        Args:
            peer: the sender of the frames; see ``FastPathFeed``.
            buffer: whole frames, and possibly the beginning of another one.
            position: the position of a frame.
            stop: no frame that begins at or after this position is handled.
            may_go_on: called repeatedly; the pass ends when it returns false.

        Returns:
            The position after the last frame that was handled.

        Raises:
            FrameError: from the peer's ``work_slow``; the frames before it are handled.
        """
        cdef Py_buffer view
        if self.on_served is not None:
            return self._measured(peer, buffer, position, stop, may_go_on)
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
        try:
            return self._work(peer, buffer, &view, position, stop, may_go_on)
        finally:
            PyBuffer_Release(&view)

    def _measured(self, peer, buffer, position, stop, may_go_on):
        """Like ``work``, and report the time to ``on_served``.

        The time is divided equally among the frames, without that of frames on the slow path.
        """
        pulls, commits, frames = self._pulls_served, self._commits_served, self.frames
        on_served, self.on_served = self.on_served, None
        self._slow_seconds = 0.0
        started = perf_counter()
        try:
            return self.work(peer, buffer, position, stop, may_go_on)
        finally:
            self.on_served = on_served
            frames = self.frames - frames
            share = (perf_counter() - started - self._slow_seconds) / max(frames, 1)
            pulls = self._pulls_served - pulls
            commits = self._commits_served - commits
            for code, count in (
                (RequestCode.SEND_MESSAGE_V2, frames - pulls - commits),
                (RequestCode.PULL_MESSAGE, pulls),
                (RequestCode.UPDATE_CONSUMER_OFFSET, commits),
            ):
                if count:
                    on_served(code, count, count * share)

    cdef Py_ssize_t _work(
        self, peer, buffer, Py_buffer *view, Py_ssize_t position, Py_ssize_t stop, may_go_on
    ) except -1:
        cdef const uint8_t *data = <const uint8_t *>view.buf
        cdef Py_ssize_t end
        cdef Py_ssize_t count = 0
        cdef int done
        self._peer = peer
        self._connection = peer.connection
        self._born_host = peer.born_host
        self._gathered.begin(self._connection, self._born_host)
        self._refresh()
        try:
            while position < stop and view.len - position >= PREFIX_BYTES:
                end = position + 4 + <Py_ssize_t>get32(data + position)
                done = self._serve(data + position, end - position, view.len - position)
                if done == LIGHT:
                    count += 1
                    position = end
                    if count % FRAMES_BETWEEN_CHECKS == 0 and not may_go_on():
                        break
                    continue
                if done == HEAVY:
                    position = end
                    self._gathered.store()
                    self._gathered.post()
                else:
                    end = self._work_slow(buffer, position)
                    if end == position:
                        break
                    position = end
                if self._connection.crowded or not may_go_on():
                    break
            return position
        finally:
            self._flush()
            self._gathered.begin(None, None)
            self._peer = self._connection = None

    cdef int _refresh(self) except -1:
        """Refresh what frames on the slow path may change; called after each, and at the start."""
        if not self._host.is_current():
            self._sends.forget()
            self._pulls.plans.forget()
            self._commits.forget()
        self._takes_sends = (
            len(self._born_host) == HOST_BYTES_V4
            and self._stores_v4
            and (not self._gathered.waits or self._connection.may_defer)
        )
        self._takes_msgpack = self._connection.speaks_msgpack
        if self._is_guarded:
            self._rules = self._host.guard.rules_for(self._connection)
        return 0

    cdef int _flush(self) except -1:
        self._gathered.flush()
        return self._pulls.report()

    cdef Py_ssize_t _work_slow(self, buffer, Py_ssize_t position) except -1:
        cdef Py_ssize_t end
        self._flush()
        started = perf_counter()
        end = self._peer.work_slow(buffer, position)
        self._slow_seconds += perf_counter() - started
        self._refresh()
        return end

    cdef int _serve(
        self, const uint8_t *frame, Py_ssize_t length, Py_ssize_t available
    ) except -1:
        """Handle a frame of ``length`` bytes, of which ``available`` have been read.

        Returns SLOW if it takes the slow path. The lengths in a frame are checked only here, by the
        same rules as in ``remoting.protocol.frame``.
        """
        cdef uint32_t mark = get32(frame + 4)
        cdef Py_ssize_t header_length = mark & 0xFFFFFF
        cdef int codec = mark >> 24
        cdef int done
        cdef bint is_pull, is_commit
        cdef Request *request = &self._request
        cdef Header *header = &request.header
        if codec > Codec.MSGPACK or (codec == Codec.MSGPACK and not self._takes_msgpack):
            return SLOW
        if length > available or length - 4 > self._longest:
            return SLOW
        if header_length > length - PREFIX_BYTES or header_length > MAX_HEADER_BYTES:
            return SLOW
        request.text = frame + PREFIX_BYTES
        request.text_length = header_length
        request.body = request.text + header_length
        request.body_length = length - PREFIX_BYTES - header_length
        if not scan(header, <Codec>codec, request.text, header_length):
            return SLOW
        if header.flag != 0 and header.flag != FLAG_ONEWAY:
            return SLOW
        is_pull = header.code == PULL_MESSAGE or header.code == LITE_PULL_MESSAGE
        is_commit = header.code == UPDATE_CONSUMER_OFFSET
        if not (is_pull or is_commit or self._takes_sends):
            return SLOW
        if self._rules is not None and not self._has_valid_signature(request):
            return SLOW
        if is_pull:
            done = self._pulls.serve(request, self._connection)
            self._pulls_served += done != SLOW
        elif is_commit:
            done = self._commit(request)
            self._commits_served += done != SLOW
        else:
            done = self._sends.serve(request, self._connection)
        self.frames += done != SLOW
        return done

    cdef bint _has_valid_signature(self, Request *request) except -1:
        """Check the signature, and set the header's account.

        False: the slow path checks it again, and denies the request. What the account may do is
        checked once, for the plan.
        """
        cdef Buffer values = self._signed_values
        cdef Signed signed
        if request.body_length > LARGEST_BODY:
            return False
        if not put_signed_values(&request.header, &signed, values):
            return False
        name = PyUnicode_DecodeUTF8(<const char *>signed.account.at, signed.account.length, NULL)
        if not self._rules.account(name).has_signed(
            PyMemoryView_FromMemory(<char *>values.data, values.length, PyBUF_READ),
            PyMemoryView_FromMemory(<char *>request.body, request.body_length, PyBUF_READ),
            PyBytes_FromStringAndSize(
                <const char *>signed.signature.at, signed.signature.length
            ),
        ):
            return False
        request.header.account = signed.account
        return True

    cdef int _commit(self, const Request *request) except -1:
        """Handle a commit of an offset; return SLOW if it takes the slow path."""
        cdef const Header *header = &request.header
        cdef int64_t offset = 0
        cdef Fill fill
        if not number_of(header, COMMIT_OFFSET, &offset):
            return SLOW
        plan = self._commits.find(request, self._connection)
        if plan is None or not self._host.commit(plan, offset):
            return SLOW
        if header.flag == 0:
            fill.opaque = header.opaque
            fill.count = fill.text_length = fill.body_length = 0
            committed = <AnswerTemplate>self._committed[<int>header.codec]
            committed.write(self._gathered.answers, &fill)
        return LIGHT
