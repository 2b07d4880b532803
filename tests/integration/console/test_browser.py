"""Every page in a real browser, narrow and wide, light and dark."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from client import blocking
from pocketmq.testing import StandaloneServer
from tests.integration.console.conftest import Surfer, console
from tests.support.browser import Browser, browser

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as page:
        yield page


UNNAMED = """[...document.querySelectorAll("input, select, textarea, button, a")]
    .filter((one) => one.type !== "hidden" && !one.labels?.length)
    .filter((one) => !one.getAttribute("aria-label") && !one.textContent.trim())
    .map((one) => one.outerHTML)"""
"""The controls that a screen reader can't name."""


def test_no_page_breaks_its_policy_fails_or_is_wider_than_the_window(
    shop: StandaloneServer, surfer: Surfer, chromium: Browser
) -> None:
    pages = [
        "",
        "topics",
        "topic?name=orders",
        "messages?topic=stock&from=begin",
        "message?topic=stock&queue=broker-a/0&offset=0",
        "groups",
        "group?name=billing",
        "dead?group=billing",
        "brokers",
        f"broker?address={shop.broker}",
        "accounts",
        "topology",
        "sign-in",
    ]
    for width, scheme in ((400, "dark"), (1400, "light")):
        chromium.scheme(scheme)
        for page in pages:
            chromium.open(surfer.url + page, width=width)
            assert chromium.run("document.documentElement.scrollWidth") == width, page
            assert chromium.run(UNNAMED) == [], page
            assert chromium.problems == [], page


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
