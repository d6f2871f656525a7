"""Composition root: builds stores, engines and clients from URLs and settings."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from interlock import config
from interlock.client.local import LocalClient
from interlock.client.port import Client
from interlock.config import Settings
from interlock.domain.issuer import issuers
from interlock.domain.principal import DEFAULT_TENANT, local
from interlock.domain.shards import ShardSupplier
from interlock.domain.sign_in import SignIn, sign_in
from interlock.domain.webhook_url import Allowance
from interlock.engine.engine import Engine
from interlock.engine.outbound_http import OutboundClient
from interlock.engine.sign_in import Provider
from interlock.engine.tokens import OWN, Trust
from interlock.errors import Invalid, Unavailable
from interlock.faces import load_face
from interlock.sdk.app import App as SdkApp
from interlock.sdk.queue import Queue as SdkQueue
from interlock.sdk.sync import sync_version
from interlock.storage.batching import batched
from interlock.storage.contract import Objects, Store
from interlock.wire import Limits

if TYPE_CHECKING:
    from interlock.api.adapters import Adapter
    from interlock.engine.jwks import Fetch
    from interlock.engine.webhook_messages import FindFormat, WebhookFormat
    from interlock.storage.promotion.promoter import Promoter

log = logging.getLogger(__name__)

SQLITE: Final = "sqlite:///"
POSTGRES: Final = ("postgresql://", "postgres://")
SERVERS: Final = ("https://", "http://")
S3: Final = "s3://"
ARTIFACTS: Final = "interlock-artifacts"
ADVICE: Final = "use sqlite:///PATH or postgresql://USER@HOST/NAME"


async def open_store(url: str) -> Store:
    """Open the store of a URL. A SQLite file is created and migrated; PostgreSQL must be migrated by its owner."""
    if url.startswith(SQLITE):
        from interlock.storage.sqlite.store import SQLiteStore

        return await SQLiteStore.open(_path(url))
    if url.startswith(POSTGRES):
        _need_asyncpg()
        from interlock.storage.postgres.store import PostgresStore

        return await PostgresStore.open(url)
    raise _no_database(url)


async def open_shards(shards: Mapping[str, str], *, supplier: str | ShardSupplier | None = None) -> Store:
    """Open one store over several PostgreSQL databases, keyed by shard name."""
    _need_asyncpg()
    from interlock.storage.shards.factory import open_sharded_store

    return await open_sharded_store(shards, supplier=supplier)


def open_objects(place: str | None, database: str) -> Objects:
    """Open the artifact storage: a bucket or a directory.

    The default directory is next to the SQLite file, or in the working directory for PostgreSQL.
    """
    if place is not None and place.startswith(S3):
        from interlock.storage.object_store.s3 import S3Objects

        return S3Objects.s3(place)
    if place is None and database == f"{SQLITE}:memory:":
        from interlock.storage.object_store.s3 import S3Objects

        return S3Objects.in_memory()
    if place is not None and "://" in place:
        raise Invalid("artifacts are kept in a directory or under s3://BUCKET/PREFIX", pointer="/artifacts")
    from interlock.storage.object_store.filesystem import FileObjects

    beside = Path(_path(database)).parent if database.startswith(SQLITE) else Path()
    return FileObjects((beside / ARTIFACTS if place is None else Path(place)).absolute())


async def migrate(url: str) -> list[str]:
    """Migrate the database of a URL and return the applied migrations."""
    if url.startswith(SQLITE):
        from interlock.storage.sqlite.store import SQLiteStore

        store = SQLiteStore(_path(url))
        try:
            return await store.migrate()
        finally:
            await store.close()
    if url.startswith(POSTGRES):
        _need_asyncpg()
        from interlock.storage.postgres.store import migrate as migrate_postgres

        return await migrate_postgres(url)
    raise _no_database(url)


def promoter(source: str, target: str, report: Callable[[str, int], None]) -> Promoter:
    """Return what promotes an existing SQLite file to a PostgreSQL database."""
    if not source.startswith(SQLITE):
        raise Invalid("the first URL is that of the SQLite file: sqlite:///PATH", pointer="/source")
    if not target.startswith(POSTGRES):
        raise Invalid("the second URL is that of the new database: postgresql://OWNER@HOST/NAME", pointer="/target")
    check_exists(source)
    _need_asyncpg()
    from interlock.storage.promotion.promoter import Promoter

    return Promoter(str(Path(_path(source)).absolute()), target, report=report)


def artifacts_beside(source: str) -> str | None:
    """Return the default directory of the artifacts of a SQLite file, if it exists."""
    directory = Path(_path(source)).absolute().parent / ARTIFACTS
    return str(directory) if directory.is_dir() else None


def _no_database(url: str) -> Invalid:
    """Return an error without the parts of the URL that may contain a password."""
    return Invalid(f"{url.split('@')[-1].split('?')[0]!r} is not a database; {ADVICE}", pointer="/database")


def _no_place(url: str) -> Invalid:
    """Like `_no_database` where a server URL is valid too; suggest the scheme, which users often omit."""
    plain = url.split("@")[-1].split("?")[0]
    advice = f"{ADVICE}, or http://HOST:PORT or https://HOST for a server"
    if "://" not in url and re.fullmatch(r"[\w.-]+(:\d+)?(/.*)?", plain) and not plain.endswith(".db"):
        advice += f": for the server {plain}, write http://{plain}"
    return Invalid(f"{plain!r} is not a URL: {advice}", pointer="/url")


async def migrate_all(settings: Settings) -> list[str]:
    """Migrate the database of the settings, or all shards, and return the applied migrations."""
    if not settings.shards:
        return await migrate(settings.database)
    return [f"{name}: {one}" for name, url in settings.shards.items() for one in await migrate(url)]


def trust(settings: Settings, fetch: Fetch) -> Trust:
    """Return the accepted credentials of the settings; `fetch` reads an issuer's keys."""
    own = "tokens" in settings.auth
    if "jwt" not in settings.auth:
        return Trust(own=own)
    from interlock.engine.jwt import Issuers

    return Trust(own=own, issuers=Issuers(issuers(settings.issuers), fetch=fetch))


def sign_in_of(settings: Settings) -> SignIn | None:
    """Return the identity provider of the settings, or None if `auth` does not name `oidc`."""
    if "oidc" not in settings.auth:
        return None
    return sign_in(settings.sign_in, client_secret=settings.sign_in_client_secret, public_url=settings.public_url)


@asynccontextmanager
async def open_provider(settings: Settings, outside: OutboundClient) -> AsyncIterator[Provider | None]:
    """Provide the identity provider of the dashboard, if the settings name one."""
    provider = None if (found := sign_in_of(settings)) is None else Provider(found, outside)
    try:
        yield provider
    finally:
        if provider is not None:
            await provider.close()


def limits(settings: Settings) -> Limits:
    """Return the limits of the settings, except that of a request body."""
    return Limits(
        webhooks=Allowance.of(settings.webhooks_allow),
        artifact=settings.artifact_bytes,
        artifacts_of_tenant=settings.artifact_quota_bytes,
        **{name: size for name, size in settings.limits.items() if name != "body"},
    )


async def new_engine(settings: Settings, *, trust: Trust = OWN, supplier: ShardSupplier | None = None) -> Engine:
    """Return an engine for the settings; the caller closes it and runs its maintenance."""
    objects = open_objects(settings.artifacts, settings.database)
    if settings.shards:
        store = await open_shards(settings.shards, supplier=supplier or settings.shard_supplier)
    else:
        store = await open_store(settings.database)
    people = sign_in_of(settings)
    return Engine(
        batched(store), limits(settings), objects=objects, trust=trust, retention_days=settings.retention_days,
        strict_types=settings.strict_types, implicit_agents=settings.implicit_agents,
        webhook_formats=webhook_formats(settings), public_url=settings.public_url,
        step_up=None if people is None else people.step_up,
    )  # fmt: skip


def webhook_formats(settings: Settings) -> FindFormat:
    """Return how the format of a delivery is found: by the adapter of that name, even if it is not served here."""

    @cache
    def find(name: str) -> WebhookFormat | None:
        try:
            return load_face(name).webhook_format(settings.face_settings)
        except Invalid as error:
            log.warning("webhooks of %s are sent in the standard format: %s", name, error)
            return None

    return find


@asynccontextmanager
async def open_adapters(settings: Settings, fetch: Fetch) -> AsyncIterator[list[Adapter]]:
    """Provide the protocol adapters of the settings; `fetch` reads the keys of an issuer."""
    async with AsyncExitStack() as stack:
        opened = []
        for name in settings.faces:
            opened.append(load_face(name)(settings.face_settings, fetch))
            stack.push_async_callback(opened[-1].close)
        yield opened


@asynccontextmanager
async def engine_of(settings: Settings, *, trust: Trust = OWN, create: bool = True) -> AsyncIterator[Engine]:
    """Provide an engine for the settings and close it afterwards; the caller runs its maintenance."""
    if not create and not settings.shards:
        check_exists(settings.database)
    engine = await new_engine(settings, trust=trust)
    try:
        yield engine
    finally:
        await engine.close()


def check_exists(database: str) -> None:
    """Reject a SQLite file that does not exist: a misspelled path must not become an empty database."""
    if not database.startswith(SQLITE) or (path := _path(database)) == ":memory:":
        return
    try:
        exists = Path(path).stat().st_size > 0
    except FileNotFoundError:
        exists = False
    except OSError:
        return  # opening it raises a better error
    if not exists:
        message = (
            f"database file {path!r} does not exist: check the path; `interlock migrate` or `interlock up` creates it"
        )
        raise Unavailable(message)


def open_engine(url: str, *, create: bool = True, **others: Any) -> AbstractAsyncContextManager[Engine]:
    """Like `engine_of`, for one database and other settings by name."""
    return engine_of(Settings(database=url, **others), create=create)


async def open_client(url: str, *, tenant: str = DEFAULT_TENANT, token: str | None = None) -> Client:
    """Return the client for a URL: an embedded engine on a database, or a server."""
    token = token or None
    check_place(url, tenant=tenant, token=token)
    if url.startswith(SERVERS):
        from interlock.client.http import HttpClient

        return HttpClient(url, token=token)
    return await client_of(Settings(database=url, tenant=tenant))


async def client_of(settings: Settings, *, supplier: ShardSupplier | None = None) -> Client:
    """Return the client for the settings, with an embedded engine."""
    return LocalClient(await new_engine(settings, supplier=supplier), local(settings.tenant))


def check_place(url: str, *, tenant: str, token: str | None) -> None:
    """Reject what does not apply: a database needs no token, a server takes the tenant from the token."""
    if token is not None and not url.startswith(SERVERS):
        raise Invalid("a token goes with the URL of a server, not with a database", pointer="/token")
    if url.startswith(SERVERS):
        check_server(url, token=token)
    elif not url.startswith((SQLITE, *POSTGRES)):
        raise _no_place(url)
    config.tenant_name(tenant)
    if tenant != DEFAULT_TENANT and url.startswith(SERVERS):
        raise Invalid("a server knows the tenant by the token; name none", pointer="/tenant")


def check_server(url: str, *, token: str | None) -> None:
    """Reject an invalid server URL or token before the first call."""
    from interlock.client.transport import checked_token, checked_url

    checked_url(url)
    if token is not None:
        checked_token(token)


class App(SdkApp):
    """Tasks, and the place of their jobs: a database, several shards, or a server with a token.

    Without a URL or shards it uses the settings. It connects at the first call.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        tenant: str | None = None,
        shards: Mapping[str, str] | None = None,
        shard_supplier: str | ShardSupplier | None = None,
        artifacts: str | None = None,
    ) -> None:
        token = token or None  # an empty environment variable means unset
        if url is not None and url.startswith(SERVERS):
            check_place(url, tenant=DEFAULT_TENANT if tenant is None else tenant, token=token)
            if shards or shard_supplier or artifacts:
                raise Invalid("a server knows its databases and where artifacts are; name none", pointer="/url")
            super().__init__(lambda: open_client(url, token=token))
        else:
            settings = _settings(url, shards, tenant=tenant, artifacts=artifacts)
            check_place(settings.database, tenant=settings.tenant, token=token)
            if isinstance(shard_supplier, str):
                settings, shard_supplier = replace(settings, shard_supplier=shard_supplier), None
            if (shard_supplier or settings.shard_supplier) and not settings.shards:
                raise Invalid("a shard supplier chooses among shards; name them", pointer="/shard_supplier")
            supplier = shard_supplier
            super().__init__(lambda: client_of(settings, supplier=supplier))


def _settings(url: str | None, shards: Mapping[str, str] | None, **others: str | None) -> Settings:
    """Return only the caller's settings if they include a database or shards, else the effective settings."""
    given: dict[str, Any] = {name: value for name, value in others.items() if value is not None}
    if url is not None and shards is not None:
        raise Invalid("an app has its jobs at a URL or on shards, not both", pointer="/shards")
    if shards is not None:
        return config.of_shards(shards, **given)
    return config.load(given) if url is None else Settings(database=url, **given)


class Queue(SdkQueue):
    """The jobs of one type as a plain queue: in an app, at a URL, or in the database of the settings.

    It is connected at the first call.
    """

    def __init__(
        self,
        type: str,
        where: str | SdkApp | None = None,
        *,
        token: str | None = None,
        tenant: str | None = None,
        lease: float | timedelta = 60.0,
        name: str | None = None,
    ) -> None:
        self._own: App | None = None
        if where is None or isinstance(where, str):
            where = self._own = App(where, token=token, tenant=tenant)
        super().__init__(type, where, lease=lease, name=name)

    async def close(self) -> None:
        """Close the client that this queue has opened in the running event loop, if any; an app stays open."""
        if self._own is not None:
            await self._own.close()

    close_sync = sync_version(close)


def _path(url: str) -> str:
    path = url.removeprefix(SQLITE)
    if not path or path.endswith("/"):
        raise Invalid(f"{url!r} names no file; {ADVICE}", pointer="/database")
    return path


def _need_asyncpg() -> None:
    try:
        import asyncpg  # noqa: F401
    except ImportError:
        raise Invalid("PostgreSQL needs the extra: pip install 'interlock[postgres]'", pointer="/database") from None
