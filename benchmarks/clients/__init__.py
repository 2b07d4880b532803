"""Comparison of our Python client and broker with those of Kafka and NATS.

    make bench-clients                                  # seven rounds, ten minutes
    make bench-clients BENCH=--quick                    # a short check, not for reliable figures
    python -m benchmarks.clients --only pocketmq,confluent-kafka --json figures.json

=================  ===================  ==========================================================
client             server               an acknowledged message is
=================  ===================  ==========================================================
pocketmq           PocketMQ             in the commit log (``ASYNC_FLUSH``)
confluent-kafka    Kafka, one node      in the leader's log (``acks=1``)
aiokafka           the same Kafka       in the leader's log (``acks=1``)
nats-py            nats-server          in a JetStream stream with file storage
=================  ===================  ==========================================================

In all of them the operating system writes the log to the disk asynchronously, and each
acknowledgement is passed to the application. Bodies have 1 KiB and are not compressed; topics have
four partitions (queues, streams). Each client is used as its documentation recommends for
throughput, or for latency where latency is measured; see the short programs in ``lanes/``. The
asyncio clients run on uvloop, all clients on the interpreter that runs this program.

All servers run all the time on loopback, and are warmed up. One client runs at a time, in a
separate process. The order is A B C D in the first round, D C B A in the second and so on, so that
slow phases of the machine affect all. Before each phase dirty pages are written to the disk. Ratios
are those within a round; absolute figures depend on the machine.

Needs Java and Maven for Kafka and Go for nats-server; servers that can't be installed are skipped
and reported. The other clients are installed in ``.tools``, pinned in ``requirements.lock``, which
is renewed with
``uv pip compile --universal --generate-hashes --no-emit-index-url --python-version 3.11
benchmarks/clients/requirements.in -o benchmarks/clients/requirements.lock``.
"""
