"""Every page in a real browser, narrow and wide, light and dark."""

from __future__ import annotations

import os
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from client import FIRST, DeadLetter, ReceivedMessage, blocking
from pocketmq import testing
from pocketmq.testing import StandaloneServer
from tests.integration.console.conftest import Surfer, console
from tests.support.browser import Browser, browser
from tests.support.npm import fetch
from tests.support.tour import HOME
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as page:
        yield page


AXE = (
    "axe-core",
    "4.14.1",
    "sha512-FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5"
    "qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ==",
)
"""What looks for hurdles for people who use a keyboard or a screen reader."""

HURDLES = """axe.run().then(({violations}) => violations
    .filter((one) => ["serious", "critical"].includes(one.impact))
    .flatMap((one) => one.nodes.map((node) => `${one.id}: ${node.html}`)))"""


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The script that defines ``axe``."""
    with tarfile.open(fetch(*AXE, tmp_path_factory.mktemp("axe"))) as content:
        stream = content.extractfile("package/axe.min.js")
        assert stream is not None
        return stream.read().decode()


def look(chromium: Browser, axe: str, url: str, width: int) -> None:
    """Open a page, and see what is wrong with it."""
    chromium.open(url, width=width)
    assert chromium.run("document.documentElement.scrollWidth") == width, url
    assert chromium.problems == [], url
    chromium.run(f"{axe}; true")
    assert chromium.run(HURDLES) == [], url


def test_no_page_breaks_its_policy_fails_has_hurdles_or_is_wider_than_the_window(
    shop: StandaloneServer, surfer: Surfer, chromium: Browser, axe: str
) -> None:
    pages = [
        *("", "topics", "topic?name=orders", "messages?topic=stock&from=begin"),
        *("message?topic=stock&queue=broker-a/0&offset=0", "groups", "group?name=billing"),
        *("dead?group=billing", "brokers", f"broker?address={shop.broker}", "topology", "sign-in"),
    ]
    for width, scheme in ((400, "dark"), (1400, "light")):
        chromium.scheme(scheme)
        for page in pages:
            look(chromium, axe, surfer.url + page, width)


def test_nor_does_one_that_needs_an_account(
    bank: StandaloneServer, door: Surfer, chromium: Browser, axe: str
) -> None:
    # A browser trusts a page without TLS only at its own machine's address.
    url = door.url.replace("0.0.0.0", "127.0.0.1")
    chromium.open(url)
    secret = bank.credentials["operator"].secret_key
    for name, value in (("access_key", "operator"), ("secret_key", secret)):
        chromium.run(f"document.querySelector('input[name={name}]').value = {value!r}")
    chromium.run("document.querySelector('main form button').click()")
    chromium.wait_until("document.body?.textContent.includes('1 of 1 answer')")
    pages = [
        *("", "topics", "topic?name=payments", "messages?topic=payments", "groups", "brokers"),
        *(f"broker?address={bank.broker}", "accounts", "topology"),
    ]
    for page in pages:
        look(chromium, axe, url + page, 1400)


def test_a_page_keeps_itself_up_to_date_and_draws_its_line(
    shop: StandaloneServer, surfer: Surfer, chromium: Browser
) -> None:
    chromium.open(surfer.url + "group?name=billing")
    chromium.wait_until("document.querySelector('figure .uplot canvas') !== null")
    before = chromium.run("document.querySelector('.stats dd').textContent")
    with blocking.Producer(shop.nameserver, group="shop") as producer:
        for _ in range(7):
            producer.send("orders", b"more", tag="open")
    chromium.wait_until(f"document.querySelector('.stats dd').textContent !== {before!r}")
    assert chromium.problems == []


def test_a_page_stays_as_it_is_when_its_next_answer_is_an_error(
    shop: StandaloneServer, surfer: Surfer, chromium: Browser
) -> None:
    shop.admin.create_topic("fleeting", queues=1)
    wait_until(lambda: surfer.get("topic?name=fleeting").status == 200, "the topic isn't seen")
    chromium.open(surfer.url + "topic?name=fleeting")
    chromium.run(
        "document.addEventListener('htmx:response:error', () => window.failed = true);"
        "document.addEventListener('htmx:finally:request', () => window.over = window.failed)"
    )
    shop.admin.delete_topic("fleeting")
    chromium.wait_until("window.over")
    assert "Last hour" in chromium.run("document.querySelector('#live').innerText")


def test_a_tab_that_nobody_sees_keeps_no_connection(surfer: Surfer, chromium: Browser) -> None:
    chromium.open(surfer.url + "groups")
    chromium.run(
        "window.ended = 0; const close = EventSource.prototype.close;"
        "EventSource.prototype.close = function () { window.ended++; close.call(this); };"
        "window.show = (yes) => {"
        " Object.defineProperty(document, 'hidden', { value: !yes, configurable: true });"
        " document.dispatchEvent(new Event('visibilitychange')); }; show(false)"
    )
    assert chromium.run("ended") == 1
    chromium.run("show(true)")
    chromium.wait_for("Network.eventSourceMessageReceived")


def test_a_console_stops_while_pages_are_kept_up_to_date(
    shop: StandaloneServer, chromium: Browser
) -> None:
    with console(shop.nameserver) as server:
        chromium.open(server.url + "groups")
        chromium.wait_for("Network.eventSourceMessageReceived")
        process = server.process
    assert process is not None
    assert "Traceback" not in process.log


def test_what_a_message_has_stays_text(surfer: Surfer, chromium: Browser) -> None:
    chromium.open(surfer.url + "messages?topic=stock&from=begin")
    assert chromium.run("document.querySelectorAll('td script, td b, td i').length") == 0
    assert "<script>alert(1)</script>" in chromium.run(
        "document.querySelector('td.body').textContent"
    )


def test_a_message_is_sent_by_hand(
    shop: StandaloneServer, surfer: Surfer, chromium: Browser
) -> None:
    chromium.open(surfer.url + "topic?name=scrap")
    chromium.run("document.querySelector('summary').click()")
    chromium.run("document.querySelector('textarea[name=body]').value = 'tea ☕'")
    chromium.run("document.querySelector('details[open] button').click()")
    chromium.wait_until("document.body?.textContent.includes('The message is stored')")
    assert [message.body.decode() for message in shop.messages("scrap")][-1:] == ["tea ☕"]
    assert chromium.problems == []


PICTURES = {
    "overview": "",
    "group": "group?name=billing",
    "message": "message?topic=orders&queue=broker-a/0&offset=0",
    "dead-letters": "dead?group=billing",
    "topology": "topology",
}
"""The pages that the documents show."""

MAX_PICTURE = 60_000
"""Bytes: what a reader loads for one picture."""


def bill(message: ReceivedMessage[bytes]) -> None:
    if message.keys[0] in {"o-7", "o-12", "o-31"}:
        raise DeadLetter(f"no price for {message.keys[0]}")


@contextmanager
def cafe() -> Iterator[StandaloneServer]:
    """A broker with two groups, one of which gives up three messages."""
    with testing.broker(settings={"brokerName": "broker-a"}) as server:
        server.admin.create_topic("orders", queues=4)
        with blocking.Producer(server.nameserver, group="shop") as producer:
            for number in range(40):
                body = b'{"order": %d, "customer": "Ada", "cups": 2}' % number
                producer.send("orders", body, tag="paid", keys=[f"o-{number}"])
        consumers = [
            blocking.PushConsumer(
                server.nameserver,
                group=group,
                subscribe={"orders": "*"},
                handler=handler,
                start_from=FIRST,
            )
            for group, handler in (("billing", bill), ("shipping", lambda _: None))
        ]
        with consumers[0], consumers[1]:
            wait_until(lambda: len(server.dead_letters("billing")) == 3, "no dead letters")
            yield server


def test_the_documents_have_small_pictures_of_the_pages(chromium: Browser, tmp_path: Path) -> None:
    """POCKETMQ_PICTURES=docs/pictures writes them there, with traffic to show."""
    place = os.environ.get("POCKETMQ_PICTURES")
    folder = Path(place) if place else tmp_path
    with (
        cafe() as server,
        console(server.nameserver, "--writable") as surfer,
        blocking.Producer(server.nameserver, group="shop") as producer,
    ):
        for second in range(60 if place else 1):
            for _ in range(5 + second * 7 % 11):
                producer.send("orders", b"{}", tag="paid", keys=["o-1"])
            time.sleep(1 if place else 0)
        chromium.scheme("light")
        for name, page in PICTURES.items():
            chromium.open(surfer.url + page, width=1200, height=300)
            file = folder / f"console-{name}.webp"
            chromium.picture(file)
            assert file.stat().st_size < MAX_PICTURE, name
            assert (HOME / "docs" / "pictures" / file.name).exists(), name
            assert chromium.problems == []
