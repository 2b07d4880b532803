"""The console as an ASGI application: who may ask for what, headers, errors, and its routes."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import client
from client.admin.base import LEFT_OUT
from client.errors import (
    AccessDenied,
    GroupNotFound,
    MessageIllegal,
    NoPermission,
    NotFound,
    PocketMQError,
    SubscriptionInvalid,
    TopicNotFound,
    UsageError,
)
from pocketmq.console import show
from pocketmq.console.sessions import COOKIE, LASTS, ConsoleSession, ConsoleSessions
from pocketmq.console.snapshot import ClusterPoller, ClusterSnapshot
from remoting.protocol.signing import Credentials
from remoting.runtime.tasks import Supervisor
from remoting.security.credentials import CredentialsSource

HOME: Final = Path(__file__).parent

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}

MAX_FORM_BYTES: Final = 16 * 1024 * 1024
"""The largest form: a message of 4 MiB, each byte of which a browser may write as three."""

MAX_SMALL_FORM_BYTES: Final = 64 * 1024
"""The largest form of those who can't change anything: it is read before its token is checked."""

FORM_SECONDS: Final = 30.0
"""How long a form, or the head of a request, may take to arrive."""

MAX_FIELDS: Final = 2_000
"""Most fields of a form: the dead letters that can be chosen on a page, and a few more."""

MAX_STREAMS: Final = 500
"""Most pages that are kept up to date at a time; others are as they were when they were opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSettings:
    """How the console was started.

    Attributes:
        credentials: the console's own keys; None: it has none.
        writable: whether pages can change something.
        loopback: whether nothing but this machine can connect, and no proxy is in front of it.
        names: host names by which it is reached, beside addresses and ``localhost``.
    """

    nameserver: str
    credentials: CredentialsSource | None = None
    writable: bool = False
    loopback: bool = True
    names: tuple[str, ...] = ()


class ConsoleApp:
    """What the pages share: the look at the cluster, the sessions, the templates."""

    def __init__(self, settings: ConsoleSettings) -> None:
        self.settings = settings
        self.sessions = ConsoleSessions()
        self.poller = ClusterPoller(settings.nameserver, settings.credentials, self.sessions)
        self.unsigned = client.Admin(settings.nameserver)
        self.streams = 0
        self.changing = asyncio.Lock()
        self._templates = Environment(
            loader=FileSystemLoader(HOME / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=show.finalize,
        )
        self._templates.globals["link"] = show.link
        self._templates.filters |= {
            name: getattr(show, name)
            for name in (
                *("ago", "body_line", "exact", "moment", "number", "short", "shown", "size"),
                *("span", "time_of"),
            )
        }

    def render(self, template: str, /, **values: object) -> str:
        """Return a page."""
        return self._templates.get_template(template).render(values)

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """Look at the cluster while the application runs."""
        tasks = Supervisor("console")
        try:
            async with self.unsigned:
                tasks.spawn(self.poller.run(), "poller")
                # The page that people open first; compiling it takes longer than writing it.
                self._templates.get_template("overview.html")
                await self.poller.looked()
                yield
        finally:
            await tasks.close()
            await self.sessions.sweep(0)

    def allows_host(self, host: str) -> bool:
        """Return whether a request may name this host.

        A page of another site can make its own name lead here (DNS rebinding), and would then read
        what needs no signing in; an address can't be made to.
        """
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        name = name.strip("[]").lower()
        if name == "localhost" or name in self.settings.names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


@dataclass(slots=True)
class Visit:
    """One request: who asks, and what for."""

    request: Request
    app: ConsoleApp
    visitor: str
    session: ConsoleSession | None
    form: Mapping[str, list[str]] = field(default_factory=dict)

    @property
    def admin(self) -> client.Admin:
        """Sends requests as this person: with their keys, or without any."""
        return self.app.unsigned if self.session is None else self.session.admin

    @property
    def snapshot(self) -> ClusterSnapshot:
        """What the last look at the cluster found."""
        return self.app.poller.snapshot

    @property
    def may_write(self) -> bool:
        """Whether this person can change something here; brokers may still refuse."""
        settings = self.app.settings
        return settings.writable and (settings.loopback or self.session is not None)

    def get(self, name: str, default: str = "") -> str:
        """Return a field of the form, or an argument of the address, without blanks around it."""
        if self.form:
            return self.form.get(name, [default])[-1].strip()
        return self.request.query_params.get(name, default).strip()

    def need(self, name: str) -> str:
        """Return a field that has to be there. Raises UsageError."""
        if not (value := self.get(name)):
            raise UsageError(f"{name} is missing")
        return value

    def integer(self, name: str, default: int, most: int = 2**62) -> int:
        """Return a number of 0 or more. Raises UsageError for anything else."""
        text = self.get(name) or str(default)
        if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= most):
            raise UsageError(f"{name} has to be a number of 0 to {most}, not {text[:40]!r}")
        return int(text)

    def page(self, template: str, /, *, status: int = 200, **values: object) -> Response:
        """Return a page as the answer."""
        values = {
            "snapshot": self.snapshot,
            "account": None if self.session is None else self.session.account,
            "may_write": self.may_write,
            "token": self.app.sessions.token(self.visitor),
            "here": self.request.url.path.rpartition("/")[2],
            "live": True,
            **values,
        }
        return HTMLResponse(self.app.render(template, **values), status)


View = Callable[[Visit], Awaitable[Response]]


def route(path: str, view: View, *, method: str = "GET", open_to_all: bool = False) -> Route:
    """Return the route of a page.

    Args:
        open_to_all: also for those who haven't signed in.
    """

    async def answer(request: Request) -> Response:
        app: ConsoleApp = request.app.state.console
        visitor = app.sessions.visitor(request.cookies.get(COOKIE))
        visit = Visit(request, app, visitor, app.sessions.get(visitor))
        app.poller.watched()
        if app.poller.asks_to_sign_in and visit.session is None and not open_to_all:
            response: Response = RedirectResponse("sign-in", HTTPStatus.SEE_OTHER)
        else:
            try:
                if method == "POST":
                    writes = path == "/act" and visit.may_write
                    await _check_post(visit, MAX_FORM_BYTES if writes else MAX_SMALL_FORM_BYTES)
                else:
                    LEFT_OUT.set(visit.snapshot.down)  # the page says which
                response = await view(visit)
            except PocketMQError as error:
                response = _failed(visit, _status_of(error), error)
            except HTTPException as error:
                response = _failed(visit, error.status_code, error.detail)
        if request.cookies.get(COOKIE) != visit.visitor:
            response.set_cookie(
                COOKIE,
                visit.visitor,
                max_age=int(LASTS),
                path=request.url.path.rpartition("/")[0] or "/",
                secure=request.url.scheme == "https",
                httponly=True,
                samesite="lax",
            )
        return response

    return Route(path, answer, methods=[method])


def _failed(visit: Visit, status: int, problem: object) -> Response:
    title = HTTPStatus(status).phrase
    return visit.page("error.html", status=status, title=title, problem=str(problem), live=False)


def _status_of(error: PocketMQError) -> int:
    if isinstance(error, UsageError | SubscriptionInvalid | MessageIllegal):
        return HTTPStatus.BAD_REQUEST
    if isinstance(error, NoPermission):
        return HTTPStatus.FORBIDDEN
    if isinstance(error, NotFound | TopicNotFound | GroupNotFound):
        return HTTPStatus.NOT_FOUND
    return HTTPStatus.BAD_GATEWAY


async def _check_post(visit: Visit, most: int) -> None:
    """Read the form, and refuse one that no page of this console has sent."""
    headers = visit.request.headers
    # Browsers leave it out for plain HTTP to another machine.
    same = headers.get("sec-fetch-site") == "same-origin"
    if "sec-fetch-site" not in headers:
        same = headers.get("origin", "").partition("://")[2] == headers.get("host")
    if not same:
        raise HTTPException(HTTPStatus.FORBIDDEN, "the form comes from another site")
    visit.form = await _read_form(visit.request, most)
    token = visit.app.sessions.token(visit.visitor)
    if not hmac.compare_digest(token.encode(), visit.get("token").encode(errors="replace")):
        raise HTTPException(
            HTTPStatus.FORBIDDEN, "the form is too old: load its page again, and send it once more"
        )


async def _read_form(request: Request, most: int) -> dict[str, list[str]]:
    body = bytearray()
    try:
        async with asyncio.timeout(FORM_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > most:
                    raise HTTPException(
                        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                        f"this form can't be larger than {most} bytes",
                    )
    except (TimeoutError, ClientDisconnect) as error:
        raise HTTPException(HTTPStatus.REQUEST_TIMEOUT, "the form didn't arrive") from error
    try:
        # A large one takes a second; other visitors don't wait for it.
        return await asyncio.to_thread(
            parse_qs,
            body.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=True,
            errors="strict",
            max_num_fields=MAX_FIELDS,
        )
    except ValueError as error:
        raise HTTPException(HTTPStatus.BAD_REQUEST, "the form can't be read") from error


class GuardedApp:
    """Checks the host that a request names, and gives each answer the headers of ``HEADERS``."""

    def __init__(self, app: ASGIApp, console: ConsoleApp) -> None:
        self._app = app
        self._console = console

    def end_streams(self) -> None:
        """End the answers that keep pages up to date, which never end by themselves."""
        self._console.poller.end()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                is_file = "/static/" in scope["path"]
                headers["Cache-Control"] = "max-age=3600" if is_file else "no-store"
            await send(message)

        host = Request(scope).headers.get("host", "")
        if self._console.allows_host(host):
            await self._app(scope, receive, send_guarded)
            return
        text = (
            "The console doesn't know itself by this name. "
            "Start it with --name and the name, or use its address.\n"
        )
        await Response(text, HTTPStatus.MISDIRECTED_REQUEST, media_type="text/plain")(
            scope, receive, send_guarded
        )


async def _sign_in_page(visit: Visit) -> Response:
    return visit.page("sign-in.html", problem="", live=False)


async def _sign_in(visit: Visit) -> Response:
    sessions = visit.app.sessions
    try:
        keys = Credentials(visit.need("access_key"), visit.need("secret_key"))
        new = await sessions.open(visit.app.settings.nameserver, keys)
    except AccessDenied:
        problem = "The brokers don't accept this access key and secret."
        return visit.page("sign-in.html", status=HTTPStatus.FORBIDDEN, problem=problem, live=False)
    await sessions.close(visit.visitor)
    visit.visitor = new
    await visit.app.poller.signed_in()
    return RedirectResponse("./", HTTPStatus.SEE_OTHER)


async def _sign_out(visit: Visit) -> Response:
    await visit.app.sessions.close(visit.visitor)
    return RedirectResponse("sign-in", HTTPStatus.SEE_OTHER)


async def _events(visit: Visit) -> Response:
    """Say, as server-sent events, that there is a new snapshot: pages then load themselves."""
    app = visit.app
    if app.streams >= MAX_STREAMS:
        # 204 makes a browser give up; with other codes it would come again and again.
        return Response(status_code=HTTPStatus.NO_CONTENT)

    async def numbers() -> AsyncIterator[str]:
        app.streams += 1
        try:
            yield "retry: 5000\n\n"
            async for number in app.poller.numbers():
                yield f"data: {number}\n\n"
        finally:
            app.streams -= 1

    headers = {"X-Accel-Buffering": "no"}
    return StreamingResponse(numbers(), media_type="text/event-stream", headers=headers)


def create_app(settings: ConsoleSettings, pages: Iterable[Route]) -> GuardedApp:
    """Return the application with its pages."""
    console = ConsoleApp(settings)
    routes = [
        *pages,
        route("/sign-in", _sign_in_page, open_to_all=True),
        route("/sign-in", _sign_in, method="POST", open_to_all=True),
        route("/sign-out", _sign_out, method="POST", open_to_all=True),
        route("/events", _events),
        Mount("/static", StaticFiles(directory=HOME / "static"), name="static"),
    ]
    app = Starlette(routes=routes, lifespan=console.lifespan)
    app.state.console = console
    return GuardedApp(app, console)
