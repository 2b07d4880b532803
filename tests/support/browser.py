"""A headless Chromium, driven by its DevTools protocol through a pair of pipes."""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

PATIENCE: Final = 60.0
"""Seconds for an answer or an event; a busy machine takes long to start it."""

_COMMAND: Final = (
    "chromium",
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


class NoContext(Exception):
    """The browser refuses a command."""


class Browser:
    """One page of a running Chromium.

    Attributes:
        problems: what it has complained about since ``open``: errors of scripts, requests that
            failed, and violations of the content security policy.
    """

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing = reading, writing
        self._received = bytearray()
        self._number = 0
        self._events: list[dict[str, Any]] = []
        self._session: str | None = None
        self.problems: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def open(self, url: str, *, width: int = 1400, height: int = 900) -> None:
        """Load a page in a window of this size; return when it and its scripts are loaded."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.problems.clear()
        self._events.clear()
        self.call("Page.navigate", url=url)
        self.wait_for("Page.loadEventFired")

    def scheme(self, name: str) -> None:
        """Prefer ``light`` or ``dark`` pages."""
        feature = {"name": "prefers-color-scheme", "value": name}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def run(self, script: str) -> Any:
        """Return the value of an expression, which may be a promise."""
        answer = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait_until(self, script: str) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + PATIENCE
        while True:
            # While a page is left, there is nothing to ask.
            with suppress(NoContext):
                if self.run(script):
                    return
            assert time.monotonic() < deadline, f"never true: {script}; {self.problems}"
            time.sleep(0.05)

    def picture(self, file: Path) -> None:
        """Write a picture of the whole page, in WebP."""
        answer = self.call(
            "Page.captureScreenshot", captureBeyondViewport=True, format="webp", quality=75
        )
        file.write_bytes(base64.b64decode(answer["data"]))

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """Return the answer to a command."""
        self._number += 1
        number = self._number
        message: dict[str, object] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._writing, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                if "error" in answer:
                    raise NoContext(answer)
                return dict(answer["result"])
            self._note(answer)

    def wait_for(self, event: str) -> None:
        """Wait until something has happened since ``open``."""
        while not any(one["method"] == event for one in self._events):
            self._note(self._receive())

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while (end := self._received.find(b"\0")) < 0:
            ready = select.select([self._reading], [], [], max(0, deadline - time.monotonic()))[0]
            assert ready, "the browser doesn't answer"
            data = os.read(self._reading, 1 << 20)
            assert data, "the browser has ended"
            self._received += data
        message = bytes(self._received[:end])
        del self._received[: end + 1]
        return dict(json.loads(message))

    def _note(self, event: dict[str, Any]) -> None:
        self._events.append(event)
        parameters = event.get("params", {})
        if event["method"] == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.problems.append(f"{parameters['entry']['text']} {parameters['entry'].get('url')}")
        elif event["method"] == "Runtime.exceptionThrown":
            self.problems.append(str(parameters["exceptionDetails"]))
        elif event["method"] == "Runtime.consoleAPICalled" and parameters["type"] == "error":
            self.problems.append(str(parameters["args"]))


@contextmanager
def browser() -> Iterator[Browser]:
    """Run Chromium during the ``with`` block."""
    with ExitStack() as stack:
        home = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        ours, theirs = os.pipe(), os.pipe()
        # It reads commands from descriptor 3 and writes to descriptor 4.
        command = f"exec {' '.join(_COMMAND)} --user-data-dir={home} 3<&{ours[0]} 4>&{theirs[1]}"
        process = subprocess.Popen(
            ["bash", "-c", command],
            pass_fds=(ours[0], theirs[1]),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        stack.callback(process.wait)
        stack.callback(process.kill)
        os.close(ours[0])
        os.close(theirs[1])
        stack.callback(os.close, ours[1])
        stack.callback(os.close, theirs[0])
        yield Browser(theirs[0], ours[1])
