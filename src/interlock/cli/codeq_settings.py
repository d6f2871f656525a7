"""Credential providers for codeQ clients, from settings in codeQ's own format."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from interlock.api.codeq.credentials import Credentials, Provider, SignedCredentials, StaticCredential, issuer_table
from interlock.config import Settings
from interlock.domain.issuer import issuers
from interlock.errors import Invalid

if TYPE_CHECKING:
    from interlock.engine.jwks import Fetch

MAX_LIFE_SECONDS: Final = 10 * 365 * 86_400  # codeQ requires an expiry and accepts any


@asynccontextmanager
async def callers(settings: Settings, fetch: Fetch) -> AsyncIterator[Credentials]:
    """Yield the credentials that codeQ routes accept besides Interlock tokens."""
    async with AsyncExitStack() as stack:

        def made(name: str, tables: Sequence[Mapping[str, Any]]) -> list[Provider]:
            found = []
            for i, table in enumerate(tables):
                try:
                    found.append(_provider(table, fetch, stack))
                except Invalid as error:
                    error.pointer = f"/{name}/{i}{error.pointer.removeprefix('/issuers/0')}"
                    raise
            return found

        yield Credentials(
            producers=made("codeq_producers", settings.codeq_producers),
            workers=made("codeq_workers", settings.codeq_workers),
            tenant_from_sub=settings.codeq_tenant_from_sub,
            producer_as_worker=settings.codeq_producer_as_worker,
            development=settings.codeq_development,
        )


def _provider(table: Mapping[str, Any], fetch: Fetch, stack: AsyncExitStack) -> Provider:
    match table.get("type"):
        case "static":
            return StaticCredential.of(table)
        case "jwks":
            from interlock.engine.jwt import Issuers  # it loads a cryptography library

            (issuer,) = issuers([issuer_table(table)])
            verifier = Issuers([issuer._replace(longest_life_seconds=MAX_LIFE_SECONDS)], fetch=fetch)
            stack.push_async_callback(verifier.close)
            return SignedCredentials(verifier)
        case _:
            raise Invalid("a provider is of type static or jwks", pointer="/type")
