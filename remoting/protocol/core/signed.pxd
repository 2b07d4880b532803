from libc.stdint cimport uint8_t

from remoting.protocol.core.answer cimport Buffer
from remoting.protocol.core.header cimport Header, Text


cdef struct Signed:
    Text account
    Text signature


cdef bint put_signed_values(const Header *header, Signed *signed, Buffer values)
