"""Sending one request to one server without an event loop, for health checks and the doctor."""

from __future__ import annotations

from typing import Final, TypeVar

from client.errors import AccessDenied, remote_error
from remoting.blocking import BlockingConnection
from remoting.errors import RemotingError
from remoting.protocol.bodies import decode
from remoting.protocol.bodies.body import Body
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command, Header
from remoting.protocol.errors import ProtocolError
from remoting.security.credentials import CredentialsSource, signer_of
from remoting.security.tls import client_tls, tls_from_environment

B = TypeVar("B", bound=Body)

TIMEOUT: Final = 3.0
"""Seconds to connect, and seconds to wait for the answer."""


class NoAnswer(Exception):
    """A server can't be reached or refuses a request; the text has its address and the reason.

    Attributes:
        code: response code of its answer; None without an answer.
        hint: what to do if the rules of its accounts deny the request; else empty.
    """

    def __init__(self, text: str, code: int | None = None, hint: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.hint = hint


def addresses(text: str) -> list[str]:
    """Return the addresses in ``host:port;host:port``."""
    return [part.strip() for part in text.replace(",", ";").split(";") if part.strip()]


def ask(
    address: str,
    code: int,
    kind: type[B],
    header: Header | None = None,
    *,
    timeout: float = TIMEOUT,
    credentials: CredentialsSource | None = None,
) -> B:
    """Send a request and return the decoded body of the answer.

    Args:
        credentials: the keys to sign it with; by default those of the environment.

    Raises:
        NoAnswer: the server did not answer, or refused.
    """
    try:
        signer = signer_of(credentials)
        with BlockingConnection(
            address,
            timeout=timeout,
            connect_timeout=timeout,
            signer=signer,
            tls=client_tls(tls_from_environment()),
        ) as connection:
            answer = connection.request(Command.request(code, header))
            if answer.code != ResponseCode.SUCCESS:
                remark = (answer.remark or "no reason given").partition("\n")[0]
                refusal = remote_error(
                    answer.code,
                    answer.remark,
                    "",
                    account=None if signer is None else signer.account,
                )
                raise NoAnswer(
                    f"{address} answers with code {answer.code}: {remark}",
                    answer.code,
                    (refusal.hint or "") if isinstance(refusal, AccessDenied) else "",
                )
            return decode(kind, bytes(answer.body))
    except (RemotingError, ValueError) as error:
        raise NoAnswer(str(error)) from error
    except ProtocolError as error:
        raise NoAnswer(f"the answer of {address} can't be read: {error}") from error
