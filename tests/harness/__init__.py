"""The two harnesses of the tests that need servers.

``cluster`` runs a name server and brokers in this process, on any event loop: a real one, with
sockets, or the scenarios' ``SimulatedLoop``, without. ``processes`` runs them as processes that can
be stopped and killed. Tests of single requests use ``tests/unit/broker/harness.py``, a broker's
processors without an event loop.
"""
