"""Signing in with the broker's accounts; and where the console may listen."""

from __future__ import annotations

import asyncio
import http.client
import json
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from pocketmq import testing
from pocketmq.console.sessions import LASTS, ConsoleSessions
from pocketmq.console.snapshot import ClusterPoller
from pocketmq.testing import ServerError, ServerProcess, StandaloneServer
from remoting.protocol.bodies import encode
from remoting.protocol.bodies.route import BrokerData, ClusterInfo
from remoting.protocol.bodies.stats import GroupProgressPage
from remoting.protocol.codes import RequestCode
from remoting.protocol.own_codes import OwnRequestCode
from remoting.protocol.signing import Credentials
from tests.integration.client.conftest import FakePeer
from tests.integration.console.conftest import Answer, Surfer, console
from tests.support.waiting import until


def sign_in(at: Surfer, bank: StandaloneServer, name: str, secret: str | None = None) -> Answer:
    fields = {"access_key": name, "secret_key": secret or bank.credentials[name].secret_key}
    return at.post("sign-in", [*fields.items(), ("token", at.token())])


def test_nothing_is_shown_before_signing_in(door: Surfer) -> None:
    stranger = Surfer(door.url)
    for page in ("", "topics", "messages?topic=payments", "trend", "events"):
        answer = stranger.get(page)
        assert (answer.status, answer.location) == (303, "sign-in")
    assert "payments" not in stranger.get("sign-in").text
    assert stranger.act("create-topic", name="planted").status == 303


def test_a_wrong_secret_is_refused(bank: StandaloneServer, door: Surfer) -> None:
    stranger = Surfer(door.url)
    for name, secret in (("operator", "wrong-secret"), ("nobody", "wrong-secret")):
        answer = sign_in(stranger, bank, name, secret)
        assert answer.status == 403
        assert "don't accept this access key and secret" in answer.words()
        assert stranger.get("topics").status == 303


def test_an_account_may_do_here_what_it_may_do_at_the_broker(
    bank: StandaloneServer, door: Surfer
) -> None:
    auditor = Surfer(door.url)
    before = auditor.get("sign-in") and auditor.cookie
    assert sign_in(auditor, bank, "auditor").status == 303
    assert auditor.cookie != before
    assert "payments" in auditor.get("topics").words()
    assert auditor.get("messages?topic=payments").status == 200
    assert auditor.get("messages?topic=salaries").status == 403
    refused = auditor.act("create-topic", name="planted")
    assert refused.status == 403
    assert "planted" not in bank.admin.topics()


def test_the_audit_log_names_the_person(bank: StandaloneServer, door: Surfer) -> None:
    operator = Surfer(door.url)
    sign_in(operator, bank, "operator")
    assert operator.act("create-topic", name="audited").status == 200
    lines = (bank.store / "logs" / "audit.log").read_text().splitlines()
    accounts = {json.loads(line)["who"] for line in lines if "audited" in line}
    assert "operator" in accounts
    assert "auditor" in operator.get("accounts").words()
    assert bank.credentials["operator"].secret_key not in operator.get("accounts").text


def test_signing_out_ends_the_session(bank: StandaloneServer, door: Surfer) -> None:
    operator = Surfer(door.url)
    sign_in(operator, bank, "operator")
    kept = operator.cookie
    assert operator.post("sign-out", [("token", operator.token())]).status == 303
    operator.cookie = kept
    assert operator.get("topics").status == 303


async def test_one_signs_in_while_a_broker_is_down() -> None:
    here = FakePeer("here")
    await here.server.start()
    brokers = {
        name: BrokerData(cluster="c", broker_name=name, broker_addrs={0: address})
        for name, address in (("here", here.address), ("gone", "127.0.0.1:1"))
    }
    cluster = encode(ClusterInfo(brokers, {"c": [*brokers]}))
    here.answers |= {
        RequestCode.GET_BROKER_CLUSTER_INFO: lambda command, _: command.reply(body=cluster),
        OwnRequestCode.GET_GROUP_PROGRESS: lambda command, _: command.reply(
            body=encode(GroupProgressPage([]))
        ),
    }
    sessions = ConsoleSessions()
    visitor = await sessions.open(here.address, Credentials("operator", "secret"))
    session = sessions.get(visitor)
    assert session is not None
    assert session.account == "operator"
    await sessions.close(visitor)
    await here.server.stop()


@pytest.mark.parametrize("how", ["signing out", "expiry"])
async def test_the_look_that_all_share_uses_keys_until_their_session_ends(
    bank: StandaloneServer, how: str
) -> None:
    now = 0.0
    sessions = ConsoleSessions(lambda: now)
    poller = ClusterPoller(bank.nameserver, None, sessions)
    looking = asyncio.create_task(poller.run())
    try:
        # A look without keys is going on; it doesn't throw away those that come meanwhile.
        keys = bank.credentials["operator"]
        visitor = await sessions.open(bank.nameserver, keys)
        await poller.signed_in()
        await until(lambda: "payments" in poller.snapshot.topics)
        assert poller.snapshot.counted
        if how == "expiry":
            now = LASTS
        else:
            await sessions.close(visitor)
        poller.hurry()
        await until(lambda: poller.snapshot.problem)
        assert not poller.snapshot.topics
        assert sessions.living() == []
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        await sessions.sweep(0)


def test_an_account_keeps_what_a_form_leaves_as_it_is(bank: StandaloneServer, door: Surfer) -> None:
    bank.admin.put_account(
        *(bank.broker, "cashier"), secret_key="old-secret", admin=True, default_topic="SUB"
    )
    operator = Surfer(door.url)
    sign_in(operator, bank, "operator")
    fields = {"secret_key": "new-secret", "admin": "", "default_topic": "", "default_group": ""}
    done = operator.act("put-account", address=bank.broker, access_key="cashier", **fields)
    assert "The account cashier is set" in done.words()
    account = bank.admin.access_rules(bank.broker).accounts["cashier"]
    assert (account.admin, account.default_topic) == (True, "SUB")
    assert sign_in(Surfer(door.url), bank, "cashier", "new-secret").status == 303


def test_a_console_with_keys_of_its_own_still_asks_to_sign_in(
    bank: StandaloneServer, tmp_path: Path
) -> None:
    keys = bank.credentials["operator"]
    file = tmp_path / "keys.yml"
    file.touch(0o600)
    file.write_text(f"accessKey: {keys.access_key}\nsecretKey: {keys.secret_key}\n")
    options = ["--writable", "--host", "0.0.0.0", "--credentials", str(file)]
    with console(bank.nameserver, *options) as surfer:
        assert surfer.get("topics").location == "sign-in"


def test_cookies_are_for_https_if_any_proxy_says_so(door: Surfer) -> None:
    port = urlsplit(door.url).port
    at = http.client.HTTPConnection("127.0.0.1", port, source_address=("127.0.0.2", 0))
    at.request("GET", "/sign-in", headers={"X-Forwarded-Proto": "https"})
    assert "Secure" in Answer(at.getresponse()).headers["Set-Cookie"]
    at.close()


@pytest.mark.parametrize("reached", [("--host", "0.0.0.0"), ("--name", "console.example.com")])
def test_without_accounts_writable_is_for_this_machine(
    shop: StandaloneServer, reached: tuple[str, str]
) -> None:
    options = ["--writable", *reached, "--port", "0"]
    server = ServerProcess(["console", "--nameserver", shop.nameserver, *options])
    with pytest.raises(ServerError, match="needs brokers that ask for accounts"):
        server.start()


def test_standalone_starts_a_console_of_its_own() -> None:
    with testing.broker() as made:
        made.stop()
        made.command = [*made.command, "--console-port", "0"]
        made.start()
        assert "1 of 1 answer" in Surfer(made.addresses["console"]).get("").words()
