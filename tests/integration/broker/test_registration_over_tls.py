"""A broker connects to its name servers with TLS when ``useTLS`` is set."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

from remoting.connection import Connection
from remoting.endpoint import Endpoint
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from tests.harness.certificates import self_signed
from tests.harness.cluster import Cluster


async def test_a_broker_registers_over_tls_with_its_certificate(tmp_path: Path) -> None:
    server_pair, own_pair = self_signed(tmp_path), self_signed(tmp_path, "broker")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*server_pair)
    context.load_verify_locations(own_pair.cert)
    context.verify_mode = ssl.CERT_REQUIRED
    is_registered = asyncio.Event()

    def handle(command: Command, _: Connection) -> Command:
        if command.code == RequestCode.REGISTER_BROKER:
            is_registered.set()
        return command.reply()

    endpoint = Endpoint(name="name server", serving=True, handler=handle)
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(endpoint), "127.0.0.1", 0, ssl=context
    )
    settings = {
        "namesrvAddr": f"127.0.0.1:{server.sockets[0].getsockname()[1]}",
        "useTLS": "true",
        "tls.client.trustCertPath": str(server_pair.cert),
        "tls.client.certPath": str(own_pair.cert),
        "tls.client.keyPath": str(own_pair.key),
    }
    async with Cluster(tmp_path, **settings) as cluster:
        await cluster.start()
        async with asyncio.timeout(30):
            await is_registered.wait()
    server.close()
    await endpoint.stop("the test ends", drain_timeout=1)
