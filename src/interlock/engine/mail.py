"""Outbound e-mail: one SMTP conversation per message, in a thread, with an address that was checked before."""

from __future__ import annotations

import asyncio
import contextlib
import smtplib
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Any, Final

from interlock.domain.channel import Address, Notice, Tls, plain_text
from interlock.domain.webhook import WebhookResponse

DEADLINE_SECONDS: Final = 15.0  # shorter than the lease of a delivery
THREADS: Final = 600  # more than deliveries and requests in progress: none waits for the mail servers of others
DELIVERED: Final = 250  # the reply of a server that accepted a message


class Mailer:
    """Sends messages with SMTP."""

    def __init__(self, *, deadline_seconds: float = DEADLINE_SECONDS) -> None:
        self._deadline = deadline_seconds
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="interlock-mail")

    async def send(
        self, server: str, address: Address, password: str | None, content: Notice, tls: ssl.SSLContext | None
    ) -> WebhookResponse:
        """Send a message to a mail server at a checked IP address; errors are part of the result."""
        conversation = _Conversation(server, address, password, tls, self._deadline)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._deadline):
                return await loop.run_in_executor(self._threads, conversation.hold, message(address, content))
        except TimeoutError:
            return WebhookResponse(error="timeout")
        finally:
            conversation.abort()  # after a deadline, this ends the thread

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


class _Conversation:
    def __init__(
        self, server: str, address: Address, password: str | None, tls: ssl.SSLContext | None, seconds: float
    ) -> None:
        self._server, self._address, self._password = server, address, password
        self._tls, self._seconds = tls, seconds
        self._socket: socket.socket | None = None

    def hold(self, content: EmailMessage) -> WebhookResponse:
        try:
            return self._hold(content)
        except smtplib.SMTPAuthenticationError as error:
            return WebhookResponse(error.smtp_code, error="login_refused")
        except smtplib.SMTPNotSupportedError:
            return WebhookResponse(error="not_supported_by_server")
        except smtplib.SMTPRecipientsRefused as error:
            code = next(iter(error.recipients.values()))[0]
            return WebhookResponse(code, error="recipients_refused")
        except smtplib.SMTPResponseException as error:
            return WebhookResponse(error.smtp_code, error="refused_by_receiver")
        except ssl.SSLError:
            return WebhookResponse(error="tls_failed")
        except TimeoutError:
            return WebhookResponse(error="timeout")
        except (smtplib.SMTPException, OSError):
            return WebhookResponse(error="cannot_connect" if self._socket is None else "broken_answer")

    def _hold(self, content: EmailMessage) -> WebhookResponse:
        address, tls = self._address, self._tls or ssl.create_default_context()
        client = _Client(self._server, self._seconds, tls if address.tls == Tls.IMPLICIT else None, address.host)
        client.connect(address.host, address.port or 0)
        self._socket = client.sock
        try:
            client.ehlo()
            if address.tls == Tls.STARTTLS:
                client.starttls(context=tls)
                self._socket = client.sock
                client.ehlo()
            if address.username is not None and self._password is not None:
                client.login(address.username, self._password)
            refused = client.send_message(content, address.sender, list(address.recipients))
        finally:
            with contextlib.suppress(smtplib.SMTPException, OSError):
                client.quit()
            client.close()
        # The message was accepted for the others: a retry would send it to them again.
        return WebhookResponse(DELIVERED, error="recipients_refused" if refused else None)

    def abort(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)


class _Client(smtplib.SMTP):
    """Connects to an IP address, and uses the name of the host for TLS only."""

    def __init__(self, server: str, seconds: float, tls: ssl.SSLContext | None, host: str) -> None:
        super().__init__(timeout=seconds, local_hostname="interlock")
        self._server, self._tls = server, tls
        self._host = host  # the name that STARTTLS verifies

    def _get_socket(self, host: str, port: int, timeout: Any) -> socket.socket:
        made = socket.create_connection((self._server, port), timeout)
        return made if self._tls is None else self._tls.wrap_socket(made, server_hostname=host)


def message(address: Address, content: Notice) -> EmailMessage:
    """Return the e-mail of a notice. A retry has the same Message-ID and date."""
    made = EmailMessage()
    sender = address.sender or ""
    made["From"] = sender
    made["To"] = ", ".join(address.recipients)
    made["Subject"] = " ".join(f"[Interlock] {content.title}: {content.facts[0][1]}".split())
    made["Date"] = format_datetime(datetime.fromisoformat(content.at))
    made["Message-ID"] = f"<{content.id}@{sender.rpartition('@')[2]}>"
    made["Auto-Submitted"] = "auto-generated"
    made.set_content(plain_text(content))
    return made
