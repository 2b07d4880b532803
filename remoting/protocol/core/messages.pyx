"""The hot paths of a client: encoding batches, and making messages of a pull answer."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.stdint cimport uint8_t
from libc.string cimport memcmp, memcpy

from types import MemberDescriptorType

from remoting.protocol.core.octets cimport put16, put32
from remoting.protocol.core.record cimport Record, Span, check_layout, find_property
from remoting.protocol.limits import MAX_PROPERTIES_BYTES
from remoting.protocol.message.record import COMPRESSED, HOSTS_V6_MASK

cdef extern from "structmember.h":
    ctypedef struct PyMemberDef:
        Py_ssize_t offset

cdef extern from "Python.h":
    ctypedef struct PyMemberDescrObject:
        PyMemberDef *d_member
    object PyType_GenericAlloc(type made, Py_ssize_t items)

cdef enum:
    ELEMENT_HEAD_BYTES = 20
    ELEMENT_BYTES = 22
    MAGIC_V1 = 0xDAA320A7

cdef Py_ssize_t LONGEST = MAX_PROPERTIES_BYTES
cdef int UNUSUAL = COMPRESSED | HOSTS_V6_MASK


def encode_columns(list bodies, list texts):
    """See ``remoting.protocol.message.batch``."""
    cdef Py_ssize_t index, body_length, text_length, total = 0, count = len(bodies)
    cdef bytes body, text, made
    cdef uint8_t *at
    if count != len(texts):
        raise ValueError("there are not as many properties as bodies")
    for index in range(count):
        body, text = bodies[index], texts[index]
        if PyBytes_GET_SIZE(text) > LONGEST:
            raise ValueError(
                f"the properties of a message take {len(text)} bytes, more than {LONGEST}"
            )
        total += ELEMENT_BYTES + PyBytes_GET_SIZE(body) + PyBytes_GET_SIZE(text)
    made = PyBytes_FromStringAndSize(NULL, total)
    at = <uint8_t *>PyBytes_AS_STRING(made)
    for index in range(count):
        body, text = <bytes>bodies[index], <bytes>texts[index]
        body_length, text_length = PyBytes_GET_SIZE(body), PyBytes_GET_SIZE(text)
        put32(at, <unsigned int>(ELEMENT_BYTES + body_length + text_length))
        put32(at + 4, 0)
        put32(at + 8, 0)
        put32(at + 12, 0)
        put32(at + 16, <unsigned int>body_length)
        memcpy(at + ELEMENT_HEAD_BYTES, PyBytes_AS_STRING(body), body_length)
        at += ELEMENT_HEAD_BYTES + body_length
        put16(at, <unsigned short>text_length)
        memcpy(at + 2, PyBytes_AS_STRING(text), text_length)
        at += 2 + text_length
    return made


cdef class Maker:
    """Makes messages of a class without calling it.

    It writes their slots directly, as the slots' descriptors do: setting five attributes would take
    longer than everything else.
    """

    cdef type _made
    cdef Py_ssize_t _answer, _offset, _topic, _body_at, _body_end

    def __init__(self, type made):
        self._made = made
        self._answer = place_of(made, "_answer")
        self._offset = place_of(made, "offset")
        self._topic = place_of(made, "topic")
        self._body_at = place_of(made, "_body_at")
        self._body_end = place_of(made, "_body_end")

    def walk(
        self, answer, name, bytes data, bytes topic, tags, Py_ssize_t position, Py_ssize_t limit,
        list messages,
    ):
        """Make messages of ordinary records; return where the first other one begins.

        See the stub.
        """
        cdef const uint8_t *start = <const uint8_t *>PyBytes_AS_STRING(data)
        cdef const uint8_t *at
        cdef Record record
        assert 0 <= position and limit <= PyBytes_GET_SIZE(data) and topic
        while check_layout(start + position, limit - position, &record):
            at = start + position
            if record.magic != <unsigned int>MAGIC_V1 or record.sys_flag & UNUSUAL:
                break
            if record.topic.length + 1 != PyBytes_GET_SIZE(topic):
                break
            if memcmp(at + record.topic.at - 1, PyBytes_AS_STRING(topic), len(topic)) != 0:
                break
            if tags is None or tag_of(at, &record) in tags:
                message = PyType_GenericAlloc(self._made, 0)
                fill(message, self._answer, answer)
                fill(message, self._topic, name)
                fill(message, self._offset, record.queue_offset)
                fill(message, self._body_at, position + record.body.at)
                fill(message, self._body_end, position + record.body.at + record.body.length)
                messages.append(message)
            position += record.size
        return position


cdef Py_ssize_t place_of(type made, str name) except -1:
    descriptor = getattr(made, name)
    if type(descriptor) is not MemberDescriptorType:
        raise TypeError(f"{made.__name__}.{name} is not a slot")
    return (<PyMemberDescrObject *>descriptor).d_member.offset


cdef inline int fill(object message, Py_ssize_t place, object value) except -1:
    Py_INCREF(value)
    (<PyObject **>(<char *><PyObject *>message + place))[0] = <PyObject *>value
    return 0


cdef object tag_of(const uint8_t *at, const Record *record):
    cdef const uint8_t *text = at + record.properties.at
    cdef Span found = find_property(text, record.properties.length, b"TAGS", 4)
    if not found.length:
        return None
    return text[found.at : found.at + found.length].decode("utf-8", "replace")
