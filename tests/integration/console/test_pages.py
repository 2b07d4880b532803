"""The console's pages, as they are without scripts."""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import client
from client import blocking
from client.positions import FIRST
from pocketmq import testing
from pocketmq.console import serving
from pocketmq.console.app import ConsoleSettings
from pocketmq.console.serving import ConsolePart
from pocketmq.testing import ServerProcess, StandaloneServer
from tests.integration.console.conftest import Answer, Surfer, console
from tests.support.waiting import wait_until


def test_each_page_shows_what_the_cluster_has(shop: StandaloneServer, surfer: Surfer) -> None:
    expected = {
        "": "1 of 1 answer",
        "topics": "orders",
        "topic?name=orders": "billing",
        "groups": "billing",
        "group?name=billing": "broker-a/1",
        "messages?topic=orders&from=begin": "o-2",
        "dead": "billing",
        "dead?group=billing": "no price in <b>o-0</b>",
        "brokers": shop.broker,
        f"broker?address={shop.broker}": "Open transactions",
        "accounts": "aclEnable=true",
        "topology": "Producer groups",
    }
    for page, text in expected.items():
        answer = surfer.get(page)
        assert answer.status == 200, answer.words()
        assert text in answer.words(), page
        assert len(answer.body) < 50_000


def test_a_topic_is_found_by_a_part_of_its_name(surfer: Surfer) -> None:
    assert "DefaultCluster" not in surfer.get("topics").words()
    answer = surfer.get("topics?q=sto")
    assert "stock" in answer.words()
    assert "orders" not in answer.words()


def test_what_a_message_has_is_shown_and_never_run(surfer: Surfer) -> None:
    page = surfer.get("messages?topic=stock&from=begin")
    assert "<script>alert(1)</script>\\x00\\u202e</td>" in page.words()
    assert "ff 00 ff 00" in page.words()
    assert len(page.body) < 50_000
    links = re.findall(r'href="(message\?[^"]+)"', page.text)
    assert len(links) == 2
    for link in links:
        shown = surfer.get(link.replace("&amp;", "&"))
        assert shown.status == 200
        assert "alert(1)</script>" not in shown.text
        assert "\u202e" not in shown.text
        assert "\x00" not in shown.text
        assert len(shown.body) < 100_000


def test_the_json_of_a_body_has_its_values_unchanged(
    shop: StandaloneServer, surfer: Surfer
) -> None:
    shop.admin.create_topic("prices", queues=1)
    body = b'{"id":1234567890123456789012,"price":1.10,"a":1,"a":2}'
    with blocking.Producer(shop.nameserver, group="shop") as producer:
        message_id = producer.send("prices", body).id
    shown = surfer.get(f"message?topic=prices&id={message_id}").words()
    assert '{ "id": 1234567890123456789012, "price": 1.10, "a": 1, "a": 2 }' in shown


def test_messages_come_in_pages_and_by_tag_key_and_sql(surfer: Surfer) -> None:
    by_tag = surfer.get("messages?topic=orders&from=begin&tags=open")
    assert "late" in by_tag.words()
    assert "Ada" not in by_tag.words()
    assert "Ada" in surfer.get("messages?topic=orders&key=o-1").words()
    assert "Ada" in surfer.get("messages?topic=orders&from=begin&sql=TAGS%3D'paid'").words()
    after = re.findall(r'href="(messages\?[^"]*cursor[^"]*)"', by_tag.text)
    again = surfer.get(after[0].replace("&amp;", "&"))
    assert "No messages" in again.words()


def test_following_a_topic_shows_its_newest_message(shop: StandaloneServer, surfer: Surfer) -> None:
    shop.admin.create_topic("wide", queues=3)
    first, *_, last = shop.admin.queues("wide")
    with blocking.Producer(shop.nameserver, group="shop") as producer:
        producer.send_many([client.Message("wide", b"old", queue=first) for _ in range(60)])
        producer.send("wide", b"newest", queue=last)
    wait_until(lambda: "broker-a/2" in surfer.get("messages?topic=wide").text, "no queues")
    for place in ("", "&from=-40", "&queue=broker-a/2"):
        assert "newest" in surfer.get(f"messages?topic=wide&live=1{place}").words()


@pytest.mark.parametrize(
    ("page", "status", "reason"),
    [
        ("topic?name=%3Cscript%3E", 404, "there is no topic <script>"),
        ("group?name=nobody", 404, "there is no group nobody"),
        ("topic", 400, "name is missing"),
        ("messages?topic=orders&from=soon", 400, "is not begin, end"),
        ("messages?topic=orders&from=-%C2%B2", 400, "is not begin, end"),
        pytest.param(f"messages?topic=orders&from={'9' * 5000}", 400, "99", id="long"),
        ("messages?topic=orders&cursor=x%00", 400, "cursor"),
        ("messages?topic=orders&from=begin&sql=%3D", 400, "ParseException"),
        ("message?topic=orders&queue=broker-a/0&offset=999", 404, "no message at offset 999"),
        ("broker?address=169.254.169.254:80", 404, "no broker is registered"),
        ("static/../app.py", 404, ""),
        ("static/%2e%2e/app.py", 404, ""),
    ],
)
def test_a_bad_address_gets_a_page_with_the_reason(
    surfer: Surfer, page: str, status: int, reason: str
) -> None:
    answer = surfer.get(page)
    assert answer.status == status, answer.words()
    assert reason in answer.words()


def test_every_answer_forbids_scripts_of_others_and_frames(surfer: Surfer) -> None:
    for page in ("", "topic?name=nix", "static/console.css", "nowhere"):
        headers = surfer.get(page).headers
        assert headers["Content-Security-Policy"].startswith(
            "default-src 'none'; script-src 'self'"
        )
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
    cookie = Surfer(surfer.url).get("").headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie


def test_a_name_that_leads_here_from_elsewhere_is_refused(surfer: Surfer) -> None:
    assert surfer.get("topics", Host="evil.example:80").status == 421
    assert surfer.get("topics", Host="localhost:1").status == 200


def test_forms_of_other_sites_and_without_the_token_do_nothing(
    shop: StandaloneServer, surfer: Surfer
) -> None:
    fields = [("action", "create-topic"), ("name", "planted"), ("token", surfer.token())]
    assert surfer.post("act", fields, Origin="http://evil.example").status == 403
    assert surfer.post("act", fields, **{"Sec-Fetch-Site": "cross-site"}).status == 403
    assert surfer.post("act", fields, **{"Sec-Fetch-Site": "same-site"}).status == 403
    assert surfer.post("act", fields[:2]).status == 403
    assert surfer.post("act", [*fields[:2], ("token", "0" * 64)]).status == 403
    assert Surfer(surfer.url).post("act", fields).status == 403
    assert "planted" not in shop.admin.topics()


def test_only_who_can_change_something_can_send_a_large_form(surfer: Surfer) -> None:
    assert surfer.act("send", topic="scrap", body="x" * 100_000).status == 200
    # The page has the token, but this is asked before the token is.
    assert surfer.post("sign-in", [("access_key", "x" * 100_000)]).status == 413


async def test_only_those_that_send_no_whole_request_are_disconnected(
    shop: StandaloneServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "FORM_SECONDS", 0.5)
    part = ConsolePart(ConsoleSettings(nameserver=shop.nameserver), "127.0.0.1", 0)
    await part.start()
    try:
        async with asyncio.timeout(20):
            address = urlsplit(part.ready()["console"])
            stream, writer = await asyncio.open_connection(address.hostname, address.port)
            writer.write(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await stream.readuntil(b"retry:")
            for begin in (b"", b"GET / HTTP/1.1\r\n"):
                silent, other = await asyncio.open_connection(address.hostname, address.port)
                other.write(begin)
                assert await silent.read() == b""
                other.close()
            assert not stream.at_eof()
            writer.close()
    finally:
        await part.stop()


def test_a_topic_that_exists_is_not_created_again(shop: StandaloneServer, surfer: Surfer) -> None:
    before = shop.admin.topic_config("orders")
    answer = surfer.act("create-topic", name="orders", queues="7")
    assert answer.status == 400
    assert "the topic exists already" in answer.words()
    assert shop.admin.topic_config("orders") == before


def test_a_message_is_sent_from_the_page(shop: StandaloneServer, surfer: Surfer) -> None:
    form = {"topic": "scrap", "body": "a\r\nb", "tag": "t", "keys": "k1 k2", "properties": "n=1"}
    answer = surfer.act("send", **form)
    assert "The message is stored in topic scrap." in answer.words()
    assert "the body isn't hex" in surfer.act("send", topic="scrap", body="x", form="hex").words()
    message = shop.messages("scrap")[-1]
    assert message.body == b"a\nb"
    assert (message.tag, message.keys, message.properties["n"]) == ("t", ["k1", "k2"], "1")


def test_a_group_handles_a_message_now(shop: StandaloneServer, surfer: Surfer) -> None:
    shop.admin.create_topic("again", queues=1)
    handled: list[bytes] = []
    with (
        blocking.Producer(shop.nameserver, group="shop") as producer,
        blocking.PushConsumer(
            shop.nameserver,
            group="repeat",
            subscribe={"again": "*"},
            handler=lambda message: handled.append(message.body),
            start_from=FIRST,
        ),
    ):
        message_id = producer.send("again", b"once more").id
        shop.wait_until_consumed("repeat", "again")
        page = f"message?topic=again&id={message_id}"
        wait_until(
            lambda: "<option>repeat</option>" in surfer.get(page).text,
            "the message's page never offers the group",
        )
        done = surfer.act("consume", name="repeat", topic="again", id=message_id)
        assert "has handled the message; nothing is committed." in done.words()
        assert "CR_SUCCESS" in done.words()
    assert handled == [b"once more"] * 2
    asked = surfer.act("consume", name="repeat", topic="again", id=message_id)
    assert "no member is online" in asked.words()


def test_what_destroys_shows_first_what_it_would_do_and_has_to_be_typed(
    shop: StandaloneServer, surfer: Surfer
) -> None:
    assert surfer.act("create-topic", name="doomed", queues="1").status == 200
    asked = surfer.act("delete-topic", name="doomed")
    assert "This deletes the topic doomed and all its messages" in asked.words()
    assert "That isn't doomed." in surfer.act("delete-topic", name="doomed", confirm="no").words()
    assert "doomed" in shop.admin.topics()
    done = surfer.act("delete-topic", name="doomed", confirm="doomed")
    assert "The topic doomed is deleted." in done.words()
    assert "doomed" not in shop.admin.topics()


def test_chosen_dead_letters_are_sent_back_after_a_preview(
    shop: StandaloneServer, surfer: Surfer
) -> None:
    letter = shop.dead_letters("billing")[1]
    asked = surfer.act("redrive", name="billing", id=letter.id)
    assert "This sends 1 dead letter of billing back; 2 stay." in asked.words()
    assert not any(each.redriven for each in shop.dead_letters("billing"))
    fields = {"name": "billing", "id": letter.id, "plan": plan_of(asked), "confirm": "yes"}
    done = surfer.act("redrive", **fields)
    assert "Sent 1 dead letter of billing back; 2 stay." in done.words()
    back = {each.id for each in shop.dead_letters("billing") if each.redriven}
    assert back == {letter.id}
    assert letter.id not in surfer.get("dead?group=billing").text
    assert "it isn't what you were shown any more" in surfer.act("redrive", **fields).words()
    assert "no dead letter is chosen" in surfer.act("redrive", name="billing").words()


def test_a_group_is_reset_after_a_preview(shop: StandaloneServer, surfer: Surfer) -> None:
    fields = {"name": "billing", "topic": "orders", "to": "begin"}
    before = shop.admin.committed("billing", "orders")
    assert "This moves the group billing" in surfer.act("reset", **fields).words()
    assert shop.admin.committed("billing", "orders") == before
    surfer.act("reset", **fields, confirm="billing")
    assert set(shop.admin.committed("billing", "orders").values()) == {0}


def test_a_page_of_dead_letters_says_that_there_are_more(
    shop: StandaloneServer, surfer: Surfer
) -> None:
    shop.admin.create_topic("%DLQ%crowd", queues=1)
    with blocking.Producer(shop.nameserver, group="shop") as producer:
        sent = producer.send_many([client.Message("%DLQ%crowd", b"x") for _ in range(100)])
        assert not any(isinstance(each, Exception) for each in sent)
        assert "there are more" not in surfer.get("dead?group=crowd").words()
        producer.send("%DLQ%crowd", b"x")
    assert "These are the first 100; there are more." in surfer.get("dead?group=crowd").words()


def test_a_clone_shows_what_it_copies(shop: StandaloneServer, surfer: Surfer) -> None:
    first, second = shop.admin.queues("orders")
    for group in ("source", "target"):
        shop.admin.create_group(group)
    shop.admin.commit("source", {first: 0})
    asked = surfer.act("clone", source="source", name="target")
    assert str(first) in asked.words()
    assert str(second) not in asked.words()


def plan_of(answer: Answer) -> str:
    found = re.search('name="plan" value="([0-9a-f]+)"', answer.text)
    assert found is not None
    return found[1]


def test_a_skip_is_shown_again_when_the_group_has_moved(
    shop: StandaloneServer, surfer: Surfer
) -> None:
    shop.admin.create_topic("steps", queues=1)
    (queue,) = shop.admin.queues("steps")
    with blocking.Producer(shop.nameserver, group="shop") as producer:
        producer.send_many([client.Message("steps", b"x") for _ in range(9)])
    shop.admin.create_group("skipper")
    shop.admin.commit("skipper", {queue: 0})
    place = f"{queue.broker_name}/{queue.queue_id}"
    fields = {"name": "skipper", "topic": "steps", "queue": place, "messages": "1"}
    plan = plan_of(surfer.act("skip", **fields))
    shop.admin.commit("skipper", {queue: 5})
    asked = surfer.act("skip", **fields, plan=plan, confirm="skipper")
    assert "it isn't what you were shown any more" in asked.words()
    assert shop.admin.committed("skipper", "steps")[queue] == 5
    fields["plan"] = plan_of(asked)
    with ThreadPoolExecutor() as threads:  # a double click
        clicks = [threads.submit(surfer.act, "skip", **fields, confirm="skipper") for _ in range(2)]
    assert sorted("Moved" in click.result().words() for click in clicks) == [False, True]
    assert shop.admin.committed("skipper", "steps")[queue] == 6


def test_without_writable_nothing_can_be_changed(shop: StandaloneServer) -> None:
    with console(shop.nameserver) as reader:
        assert "read-only" in reader.get("").words()
        assert "<form method" not in reader.get("topic?name=orders").text
        answer = reader.act("create-topic", name="planted")
        assert answer.status == 403
        assert "this console shows only" in answer.words()


def test_a_broker_that_dies_is_named(shop: StandaloneServer, surfer: Surfer) -> None:
    shop.pause()
    try:
        wait_until(
            lambda: "The cluster can't be seen." in surfer.get("").words(),
            "the overview doesn't notice it",
        )
    finally:
        shop.resume()
    wait_until(
        lambda: "The cluster can't be seen." not in surfer.get("").words(), "it doesn't come back"
    )


def test_a_cluster_that_is_half_down_is_shown_with_the_name_of_that_half(tmp_path: Path) -> None:
    with testing.broker() as server:
        options = ["--nameserver", server.nameserver, "--port", "0", "--store", str(tmp_path)]
        other = ServerProcess(["broker", *options, "--name", "broker-b"])
        other.start()
        try:
            wait_until(lambda: len(server.admin.brokers()) == 2, "only one broker is registered")
            server.admin.create_topic("orders", queues=1)
            with blocking.Producer(server.nameserver, group="shop") as producer:
                for queue in server.admin.queues("orders"):
                    message = client.Message("orders", b"x", keys=["k"], queue=queue)
                    producer.send_many([message] * 50)
            server.admin.create_group("billing")
            server.admin.commit("billing", dict.fromkeys(server.admin.queues("orders"), 1))
            server.admin.create_topic("%DLQ%billing", queues=1)
            with console(server.nameserver) as surfer:
                assert "2 of 2 answer" in surfer.get("").words()
                look_at_one_half(surfer, other)
        finally:
            other.kill()


def look_at_one_half(surfer: Surfer, other: ServerProcess) -> None:
    other.pause()
    said = "1 of 2 brokers don't answer; what they have is missing here. broker-b"
    wait_until(lambda: said in surfer.get("topics").words(), "no page says so")
    assert "1 of 2 answer" in surfer.get("").words()
    for page in (
        *("topic?name=orders", "group?name=billing", "messages?topic=orders&key=k"),
        *("topology", "brokers", "groups", "accounts", "dead", "dead?group=billing"),
    ):
        answer = surfer.get(page)
        assert answer.status == 200, answer.words()
        assert said in answer.words()
    there = surfer.get("messages?topic=orders").words()
    assert "Not read: broker-b: its broker isn't registered or doesn't answer" in there
    other.resume()
    found: list[str] = []
    wait_until(
        lambda: found.append(surfer.get("topics").words()) or "orders 2 " in found[-1],
        "it doesn't come back",
    )
    # Nothing was sent meanwhile: what it had before isn't new.
    assert "orders 2 0 98 billing" in found[-1]
