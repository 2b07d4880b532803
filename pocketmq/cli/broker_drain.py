"""``pocketmq broker drain``."""

from __future__ import annotations

import asyncio

import click

import client
from client.network.routes import MASTER_ID
from pocketmq import output
from pocketmq.cli.completion import broker_names
from pocketmq.cli.running import (
    Call,
    call_options,
    gather_limited,
)
from remoting.protocol.names import PERM_READ, PERM_WRITE

POLL_SECONDS = 1.0


@click.command(epilog="Example: pocketmq broker drain broker-a-1")
@click.argument("name", shell_complete=broker_names)
@click.option("--undo", is_flag=True, help="Let NAME take messages again.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Give up waiting, with exit code 1; NAME stays as it is.",
)
@call_options
def drain(name: str, undo: bool, timeout: float | None, call: Call) -> None:
    """Have broker NAME take no more messages, and wait until its messages are read.

    Producers use the other brokers. The command waits for every group that has committed offsets
    there, and for delayed, timed and half messages. Then the broker can be stopped, and nothing is
    unread in its store. It stays drained, also over a restart, until --undo.
    """
    if undo:
        call.ask(lambda admin: _permit(admin, name, PERM_READ | PERM_WRITE))
        call.done(f"{name} takes messages again", {"broker": name})
        return

    async def wait(admin: client.Admin) -> None:
        await _permit(admin, name, PERM_READ)
        shown = ""
        while waiting := await _waiting(admin, name):
            text = ", ".join(waiting)
            if text != shown:
                click.echo(f"{name} takes no messages; waiting for {text}", err=True)
            shown = text
            await asyncio.sleep(POLL_SECONDS)

    async def wait_at_most(admin: client.Admin) -> None:
        try:
            async with asyncio.timeout(timeout):
                await wait(admin)
        except TimeoutError:
            waiting = ", ".join(await _waiting(admin, name))
            raise click.ClickException(
                f"{name} takes no messages, but after {timeout:g} s there are still {waiting}: see"
                f" that the groups have members, or undo it with `pocketmq broker drain {name}"
                " --undo`"
            ) from None

    call.ask(wait_at_most)
    call.done(
        f"{name} takes no messages, and every group has read those that it has: it can be stopped",
        {"broker": name},
    )


async def _permit(admin: client.Admin, name: str, permission: int) -> None:
    broker = await _master(admin, name)
    await admin.update_broker_config(broker.address, {"brokerPermission": str(permission)})


async def _master(admin: client.Admin, name: str) -> client.BrokerInfo:
    return next(one for one in await admin.brokers(names=[name]) if one.id == MASTER_ID)


async def _waiting(admin: client.Admin, name: str) -> list[str]:
    """Return what a broker still has to deliver, as words; empty if nothing."""
    broker = await _master(admin, name)
    groups, runtime = await asyncio.gather(admin.groups(), admin.broker_runtime(broker.address))
    lags = await gather_limited(groups, admin.lag)
    waiting = []
    for lag in lags:
        unread = sum(one.messages for queue, one in lag.queues.items() if queue.broker_name == name)
        if unread > 0:
            waiting.append(f"{output.count(unread, 'message')} of group {lag.group}")
    delayed = sum(
        int(end) - int(delivered)
        for key, value in runtime.items()
        if key.startswith("scheduleMessageOffset_")
        for delivered, _, end in [value.partition(",")]
    )
    timed = int(runtime.get("timerCongestNum", "0"))
    half = int(runtime.get("pocketmqTransactionsOpen", "0"))
    for number, what in (
        (delayed, "delayed message"),
        (timed, "timed message"),
        (half, "open transaction"),
    ):
        if number > 0:
            waiting.append(output.count(number, what))
    return waiting
