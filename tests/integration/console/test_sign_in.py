"""Signing in with the broker's accounts; and where the console may listen."""

from __future__ import annotations

import json

import pytest

from pocketmq import testing
from pocketmq.testing import ServerError, ServerProcess, StandaloneServer
from tests.integration.console.conftest import Answer, Surfer


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


def test_without_accounts_writable_is_for_this_machine(shop: StandaloneServer) -> None:
    options = ["--writable", "--host", "0.0.0.0", "--port", "0"]
    server = ServerProcess(["console", "--nameserver", shop.nameserver, *options])
    with pytest.raises(ServerError, match="needs brokers that ask for accounts"):
        server.start()


def test_standalone_starts_a_console_of_its_own() -> None:
    with testing.broker() as made:
        made.stop()
        made.command = [*made.command, "--console-port", "0"]
        made.start()
        assert "1 of 1 answer" in Surfer(made.addresses["console"]).get("").words()
