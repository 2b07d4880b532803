"""Certificates are replaced while messages are sent, at servers that accept TLS only."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import client
from pocketmq.server.metrics_page import MetricsPage
from pocketmq.server.process import LoopMonitor, RequestTimes
from remoting.pool import ConnectionPool
from remoting.security.tls import Tls
from tests.harness.certificates import Pair, self_signed
from tests.harness.cluster import Cluster
from tests.support.ports import free_ports


def put(new: Pair, old: Pair) -> None:
    """Replace a pair as a tool does: one file after the other."""
    for source, target in zip(new, old, strict=True):
        fresh = target.with_suffix(".fresh")
        shutil.copyfile(source, fresh)
        fresh.replace(target)


async def test_certificates_are_replaced_under_load_without_a_failed_send(tmp_path: Path) -> None:
    first, second = self_signed(tmp_path, "first"), self_signed(tmp_path, "second")
    used = Pair(tmp_path / "cert.pem", tmp_path / "key.pem")
    put(first, used)
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(first.cert.read_bytes() + second.cert.read_bytes())
    settings = {
        "listenPort": str(free_ports(3)),
        "tls.server.mode": "enforcing",
        "tls.server.certPath": str(used.cert),
        "tls.server.keyPath": str(used.key),
        "useTLS": "true",
        "tls.client.trustCertPath": str(trusted),
    }
    async with Cluster(tmp_path, **settings) as cluster:
        broker = await cluster.start()
        async with client.Instance(cluster.nameserver, tls=str(trusted)) as instance:
            admin = instance.admin()
            await admin.create_topic("orders", queues=2)
            producer = instance.producer(group="rotation", retries=0)
            sent = 0

            async def shown_to_new_clients(pair: Pair) -> None:
                """Send until new connections to both servers get this certificate."""
                nonlocal sent
                async with asyncio.timeout(60):
                    while True:
                        await producer.send_many([client.Message("orders", b"x")] * 10)
                        sent += 10
                        try:
                            async with client.Admin(cluster.nameserver, tls=str(pair.cert)) as new:
                                for info in await new.brokers():
                                    await new.broker_config(info.address)
                        except client.Unavailable:
                            await asyncio.sleep(0.05)
                        else:
                            return

            await shown_to_new_clients(first)
            put(second, used)
            await shown_to_new_clients(second)
            async with ConnectionPool(tls=Tls(ca=second.cert)) as pool:
                assert (await pool.get(f"127.0.0.1:{broker.port - 2}")).is_tls, "the VIP port"
            stats = await admin.topic_stats("orders")
            assert sum(queue.max_offset for queue in stats.values()) == sent
            page = MetricsPage(
                [cluster.name_server], [broker], RequestTimes(), LoopMonitor().stalls
            )
            shown = {
                (sample.name, sample.labels["server"]): sample.value
                for metric in page.collect()
                for sample in metric.samples
                if sample.name.startswith("pocketmq_tls_") and "reason" not in sample.labels
            }
            for name, server in (("broker", broker), ("nameserver", cluster.name_server)):
                assert server.tls is not None
                expiry = shown["pocketmq_tls_certificate_expiry_timestamp_seconds", name]
                assert expiry == server.tls.expires_at
                assert shown["pocketmq_tls_files_broken", name] == 0
                assert shown["pocketmq_tls_connections", name] >= 1
                assert shown["pocketmq_tls_handshakes_total", name] >= 3
