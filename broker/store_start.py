"""Creating the broker's store from the settings, and opening it without blocking the event loop.

Opening a store may require reading the whole commit log. If the broker is stopped in the meantime,
recovery stops after its next step, which leaves the store as a killed process would.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from functools import partial
from typing import Final

import structlog

from broker.config import BrokerConfig
from broker.errors import StartError
from broker.store.engine import MessageStore, StoreConfig
from broker.store.os_files import Files
from remoting.protocol.message.record import ip_bytes
from remoting.runtime.clock import Clock

_log = structlog.get_logger("broker")

LOG_SECONDS: Final = 5.0
"""Interval at which the progress of opening the store is logged."""


def make_store(
    config: BrokerConfig, address: tuple[str, int], files: Files, clock: Clock
) -> MessageStore:
    """Create the store from the broker's settings; it isn't open yet.

    ``address`` is the store host in its records.
    """
    return MessageStore(
        StoreConfig(
            root=config.store_path_root_dir,
            commit_log_path=config.store_path_commit_log,
            mapped_file_size_commit_log=config.mapped_file_size_commit_log,
            mapped_file_size_consume_queue=config.mapped_file_size_consume_queue,
            flush_disk_type="SYNC_FLUSH" if config.sync_flush else "ASYNC_FLUSH",
            flush_interval_commit_log_ms=config.flush_interval_commit_log_ms,
            flush_interval_consume_queue_ms=config.flush_interval_consume_queue_ms,
            sync_flush_timeout_ms=config.sync_flush_timeout_ms,
            max_message_size=config.max_message_size,
            store_host=address,
            check_crc_on_recover=config.check_crc_on_recover,
            delay_levels_ms=config.delay_levels_ms,
            retention=config.retention,
            message_index_enable=config.message_index_enable,
            max_hash_slots=config.max_hash_slots,
            max_index_entries=config.max_index_entries,
            waits_for_slave=config.broker_role == "SYNC_MASTER",
            slave_timeout_ms=config.slave_timeout_ms,
            follows=config.is_slave,
            controlled=config.enable_controller_mode,
            limits=config.store_limits,
        ),
        files=files,
        clock=clock,
    )


async def open_store(
    store: MessageStore, *, cut: int | None = None, log_seconds: float = LOG_SECONDS
) -> None:
    """Open the store in a thread, and start it; if cancelled, close it.

    See ``MessageStore.open`` for ``cut``.

    Raises:
        StoreError: the store can't be opened.
    """
    loop = asyncio.get_running_loop()
    opening = loop.run_in_executor(None, partial(store.open, cut=cut))
    try:
        while not (await asyncio.wait([opening], timeout=log_seconds))[0]:
            _log.info(
                "reading the commit log",
                store=str(store.paths.root),
                position=store.progress.position,
                of=store.progress.end,
            )
    except asyncio.CancelledError:
        store.progress.give_up()
        # Also if it is cancelled again: the thread may have locked the store.
        while not opening.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([opening])
        if opening.exception() is None:
            store.close()
        _log.warning("stopped while the store was being opened", store=str(store.paths.root))
        raise
    report = opening.result()
    store.start(loop)
    for note in report.notes:
        _log.warning("store recovered", note=note)
    _log.info(
        "store open",
        store=str(store.paths.root),
        clean=report.clean,
        end_offset=report.end_offset,
        queues=report.queues,
        records=report.scanned_records,
        stepped_over=report.damaged_records,
        seconds=round(report.seconds, 3),
    )


async def numeric(host: str) -> str:
    """Return the numeric address of a host for the store's records, IPv4 if it has one.

    Raises:
        StartError: the host can't be resolved.
    """
    try:
        ip_bytes(host)
    except ValueError:
        pass
    else:
        return host
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise StartError(
            f"the advertised host {host} has no address ({error}): set brokerIP1 to an address "
            "that clients can reach"
        ) from error
    return str(min(found, key=lambda info: info[0] != socket.AF_INET)[4][0])
