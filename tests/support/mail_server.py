"""A real SMTP server on a port of this machine that keeps what it gets."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any

from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

USERNAME, PASSWORD = "interlock", "open sesame"


class MailServer:
    """Keeps the messages; `refused` are addresses to which it accepts none, `reply` is its response to a message."""

    def __init__(self) -> None:
        self.port = 0
        self.messages: list[EmailMessage] = []
        self.envelopes: list[Envelope] = []
        self.encrypted: list[bool] = []
        self.logins: list[tuple[bytes, bytes]] = []
        self.refused: set[str] = set()
        self.reply = "250 OK"

    async def handle_RCPT(
        self, _server: SMTP, _session: Session, envelope: Envelope, address: str, _options: list[str]
    ) -> str:
        if address in self.refused:
            return "550 no such mailbox"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, _session: Session, envelope: Envelope) -> str:
        if self.reply.startswith("250"):
            content = envelope.original_content or b""
            self.messages.append(message_from_bytes(content, EmailMessage, policy=policy.default))
            self.envelopes.append(envelope)
            assert server.transport is not None
            self.encrypted.append(server.transport.get_extra_info("ssl_object") is not None)
        return self.reply

    def login(self, _server: Any, _session: Any, _envelope: Any, _mechanism: str, given: Any) -> AuthResult:
        assert isinstance(given, LoginPassword)
        self.logins.append((given.login, given.password))
        # Not handled: the server itself sends the reply to a wrong password.
        return AuthResult(success=given == LoginPassword(USERNAME.encode(), PASSWORD.encode()), handled=False)


@asynccontextmanager
async def mail_server(
    *, tls: ssl.SSLContext | None = None, implicit: bool = False, login: bool = False
) -> AsyncIterator[MailServer]:
    """A mail server for as long as the block lasts, with TLS after STARTTLS or from the start."""
    made = MailServer()

    def protocol() -> SMTP:
        starttls = None if implicit else tls
        return SMTP(
            made, hostname="mail.test", tls_context=starttls, require_starttls=starttls is not None,
            authenticator=made.login, auth_required=login and not implicit, auth_require_tls=not implicit,
        )  # fmt: skip

    server = await asyncio.get_running_loop().create_server(
        protocol, "127.0.0.1", 0, ssl=tls if implicit else None
    )  # fmt: skip
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        await server.wait_closed()
