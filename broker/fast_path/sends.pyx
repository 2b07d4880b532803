"""Sends: from a header to records, queue entries and an answer.

Each step is that of ``broker.processors.send`` and ``broker.store.writer`` for messages that
nothing is special about; all others are left to them.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from remoting.protocol import limits

from broker.fast_path.gather cimport COLD, HEAVY, LIGHT, Gathered, Run
from remoting.protocol.core.answer cimport Fill
from remoting.protocol.core.buffer cimport Buffer
from remoting.protocol.core.build cimport (
    FIXED_BYTES, Head, Properties, body_crc, read_properties,
)
from remoting.protocol.core.header cimport (
    BORN_TIMESTAMP, PROPERTIES, Header, Kind, Text, key_of, number_of,
)
from remoting.protocol.core.json_header cimport unescape
from remoting.protocol.core.octets cimport get16, get32
from remoting.protocol.core.record cimport java_hash, tags_code

cdef extern from *:
    """
    #include <string.h>
    extern void *memmem(const void *, size_t, const void *, size_t);
    """
    void *memmem(const void *, size_t, const void *, size_t) noexcept nogil

cdef enum:
    ELEMENT_BYTES = 22
    # A larger body is written by the general path, which copies it no more often.
    LARGEST_BODY = 256 * 1024

# The slots by which a send's plan is known: all but the producer group, the default topic, the
# time, the properties and the broker's name.
cdef uint32_t KEY = 0x1FFF & ~(1 | 1 << 2 | 1 << 6 | 1 << 8)

cdef Py_ssize_t MAX_PROPERTIES_BYTES = limits.MAX_PROPERTIES_BYTES
cdef Py_ssize_t MAX_BATCH_MESSAGES = limits.MAX_BATCH_MESSAGES


cdef class Plan:
    """What all sends of one kind have in common; see ``Host.plan_send``."""

    def __cinit__(self, plan, Run run):
        self.run = run
        self.answer = plan.answer
        self.late_answer = plan.late_answer
        self.flag = plan.flag
        self.sys_flag = plan.sys_flag
        self.reconsume_times = plan.reconsume_times
        self.batch = plan.batch


cdef class Sends:
    """Serves sends, single ones and batches.

    Args:
        host: a ``Host``.
        gathered: takes messages and answers.
        max_plans: kinds of sends that are remembered.
    """

    def __cinit__(self, host, Gathered gathered, Py_ssize_t max_plans):
        self._host = host
        self._gathered = gathered
        self._max_plans = max_plans
        self._plans = {}
        self._runs = {}
        self._text = Buffer()
        self._positions = Buffer()
        self._cluster = host.cluster
        self._max_body = host.max_body

    cdef int forget(self) except -1:
        """Topics or queues have changed."""
        self._plans.clear()
        self._runs.clear()
        return 0

    cdef int serve(
        self, const Header *header, const uint8_t *at, Py_ssize_t header_length,
        const uint8_t *body, Py_ssize_t length, connection,
    ) except -1:
        """Serve a send whose header lies at ``at``; COLD: the general path has to."""
        cdef const Text *sent = &header.slots[PROPERTIES]
        cdef Py_ssize_t text_length = sent.length
        cdef uint8_t *text
        cdef Head head
        cdef Plan plan
        if not number_of(header, BORN_TIMESTAMP, &head.born_ms):
            return COLD
        plan = self._find(header, at, header_length, connection)
        if plan is None:
            return COLD
        # With room for the broker's own entry and the separator before it.
        self._text.length = 0
        text = self._text.room(text_length + PyBytes_GET_SIZE(self._cluster) + 1)
        if sent.kind == Kind.ESCAPED:
            text_length = unescape(sent.at, text_length, text)
            if text_length < 0:
                return COLD
        elif sent.kind == Kind.TEXT:
            memcpy(text, sent.at, text_length)
        elif sent.kind != Kind.ABSENT:
            return COLD
        head.sys_flag = plan.sys_flag
        head.reconsume_times = plan.reconsume_times
        if plan.batch:
            return self._batch(plan, header, &head, text, text_length, body, length)
        return self._one(plan, header, &head, text, text_length, body, length)

    cdef Plan _find(
        self, const Header *header, const uint8_t *at, Py_ssize_t header_length, connection
    ):
        """The plan of a send; None: the general path decides."""
        cdef Run run
        key = key_of(header, KEY)
        if key is None:
            return None
        found = self._plans.get(key)
        if found is not None:
            return <Plan>found
        text = PyBytes_FromStringAndSize(<const char *>at, header_length)
        plan = self._host.plan_send(<int>header.codec, text, connection)
        if plan is None:
            return None
        if len(self._plans) >= self._max_plans:
            # The runs stay: one queue has one of them as long as a pass lasts.
            self._plans.clear()
        run = self._runs.get(plan.queue)
        if run is None:
            run = self._runs[plan.queue] = Run(plan.queue)
        made = self._plans[key] = Plan(plan, run)
        return made

    cdef Py_ssize_t _with_cluster(self, uint8_t *text, Py_ssize_t length) noexcept:
        """Append the broker's entry to a properties text; its new length."""
        cdef Py_ssize_t more = PyBytes_GET_SIZE(self._cluster)
        if length and text[length - 1] != 2:
            text[length] = 2
            length += 1
        memcpy(text + length, PyBytes_AS_STRING(self._cluster), more)
        return length + more

    cdef int _one(
        self, Plan plan, const Header *header, Head *head, uint8_t *text, Py_ssize_t text_length,
        const uint8_t *body, Py_ssize_t length,
    ) except -1:
        cdef Gathered gathered = self._gathered
        cdef Run run = plan.run
        cdef Properties properties
        cdef int64_t number, position, code
        if length > self._max_body or length > LARGEST_BODY:
            return COLD
        if not read_properties(text, text_length, False, &properties):
            return COLD
        text_length = self._with_cluster(text, properties.length)
        if text_length > MAX_PROPERTIES_BYTES:
            return COLD
        head.size = FIXED_BYTES - 1 + length + PyBytes_GET_SIZE(run.topic) + text_length
        if not gathered.make_room(run, 1, head.size):
            return COLD
        head.crc = body_crc(body, length)
        head.flag = plan.flag
        head.body_length = length
        position, number = gathered.position, run.next_offset
        code = <int32_t>java_hash(properties.tag, properties.tag_length, 0)
        gathered.put(run, head, code, body, text, text_length)
        gathered.sent_bytes += length
        self._answer(plan, header, properties.waits, number, &position, 1)
        return LIGHT

    cdef int _answer(
        self, Plan plan, const Header *header, bint waits, int64_t number,
        const int64_t *positions, Py_ssize_t count,
    ) except -1:
        cdef Fill fill
        if header.flag != 0:
            return 0
        fill.opaque = header.opaque
        fill.numbers[0] = number
        fill.positions = positions
        fill.count = count
        fill.body_length = 0
        if waits and self._gathered.syncs:
            return self._gathered.answer_late(plan.answer, plan.late_answer, &fill)
        return plan.answer.write(self._gathered.answers, &fill)

    # --- batches

    cdef int _batch(
        self, Plan plan, const Header *header, Head *head, uint8_t *text, Py_ssize_t text_length,
        const uint8_t *body, Py_ssize_t length,
    ) except -1:
        cdef Properties common
        cdef Py_ssize_t count
        cdef int64_t size = 0, number
        # The bodies take less than the whole; so near the limit they are counted elsewhere.
        if length > self._max_body:
            return COLD
        if not read_properties(text, text_length, True, &common):
            return COLD
        # A message of the batch may ask for a timer.
        if memmem(body, length, b"TIMER_DEL", 9) != NULL:
            return COLD
        self._text.length = self._with_cluster(text, text_length)
        count = measure(plan.run, self._text.length, body, length, &size)
        if count <= 0 or not self._gathered.make_room(plan.run, count, size):
            return COLD
        number = plan.run.next_offset
        self._put_elements(plan, head, &common, body, count)
        self._gathered.sent_bytes += length
        self._answer(
            plan, header, common.waits, number, <const int64_t *>self._positions.data, count
        )
        return HEAVY

    cdef int _put_elements(
        self, Plan plan, Head *head, const Properties *common, const uint8_t *body,
        Py_ssize_t count,
    ) except -1:
        """Add the messages of a batch that was measured; all get its own text behind theirs."""
        cdef Gathered gathered = self._gathered
        cdef Py_ssize_t index, own_length, text_length
        cdef Py_ssize_t common_length = self._text.length
        cdef Py_ssize_t fixed = FIXED_BYTES - 1 + PyBytes_GET_SIZE(plan.run.topic)
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
            # Behind the batch's own text, joined as ``properties.join`` does.
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
            gathered.put(plan.run, head, code, body, text, text_length)
            body += head.body_length + 2 + own_length
        return 0


cdef Py_ssize_t measure(
    Run run, Py_ssize_t text_length, const uint8_t *body, Py_ssize_t length, int64_t *size
) noexcept:
    """How many messages a batch has, and the bytes of their records.

    The one place where a batch's lengths are checked; -1: the general path has to refuse it.
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
        at += properties_length
        joined = properties_length + text_length
        joined += properties_length > 0 and body[at - 1] != 2
        if joined > MAX_PROPERTIES_BYTES:
            return -1
        size[0] += FIXED_BYTES - 1 + body_length + PyBytes_GET_SIZE(run.topic) + joined
        count += 1
    return count
