"""Our Python client on our broker beside those of Kafka and NATS on theirs.

    make bench-clients                                  # seven rounds, ten minutes
    make bench-clients BENCH=--quick                    # whether it runs; its figures mean little
    python -m benchmarks.clients --only pocketmq,confluent-kafka --json figures.json

=================  ===================  ==========================================================
client             server               an acknowledged message is
=================  ===================  ==========================================================
pocketmq           PocketMQ             in the commit log (``ASYNC_FLUSH``)
confluent-kafka    Kafka, one node      in the leader's log (``acks=1``)
confluent-default  the same Kafka       the same; none of its settings changed for speed
aiokafka           the same Kafka       in the leader's log (``acks=1``)
nats-py            nats-server          in a JetStream stream with file storage
=================  ===================  ==========================================================

In every one the system writes the log to the disk in its own time, and each acknowledgement comes
back to the application. Bodies have 1 KiB and are not compressed; topics have four partitions
(queues, streams). Each client is used as its documentation has it for throughput, or for latency
where latency is measured; ``lanes/`` shows how, one short program each. The clients of a loop run
on uvloop, all on the interpreter that runs this.

All servers run all the time, on loopback, and are warm; one client works at a time, in a process
of its own, first round A B C D, second D C B A and so on, so that a slow minute of the machine
meets all alike. Before each phase, dirty pages are written to the disk. Ratios are taken within a
round; absolute figures say as much about the machine.

Needs Java and Maven for Kafka and Go for nats-server; what is missing is left out and named. The
foreign clients live in ``.tools``, pinned in ``requirements.lock``, which is renewed with
``uv pip compile --universal --generate-hashes --no-emit-index-url --python-version 3.11
benchmarks/clients/requirements.in -o benchmarks/clients/requirements.lock``.
"""
