"""A server in the place of an engine: what commands need of one, and no more."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

from interlock.cli.remote import admin
from interlock.cli.remote import jobs as on_jobs
from interlock.cli.remote.connection import ServerConnection
from interlock.cli.remote.decode import members
from interlock.client.http.decode import read
from interlock.domain.principal import Principal, local
from interlock.engine.engine import Engine


class Remote:
    """The parts of an engine that commands use, over HTTP."""

    def __init__(self, line: ServerConnection) -> None:
        self.jobs = on_jobs.RemoteJobs(line)
        self.queries = on_jobs.RemoteQueries(line)
        self.operations = on_jobs.RemoteOperations(line)
        self.retention = on_jobs.RemoteRetention(line)
        self.why = on_jobs.RemoteExplainer(line)
        self.waits = on_jobs.RemoteCompletion(line)
        self.progress = on_jobs.RemoteProgress(line)
        self.audit = on_jobs.RemoteAudit(line)
        self.workers = on_jobs.RemoteWorkers(line)
        self.approvals = admin.RemoteApprovals(line)
        self.registry = admin.RemoteRegistry(line)
        self.tokens = admin.RemoteTokens(line)
        self.webhooks = admin.RemoteWebhooks(line)
        self.artifacts = admin.RemoteArtifacts(line)


@asynccontextmanager
async def opened(server: str, token: str | None) -> AsyncIterator[tuple[Engine, Principal]]:
    """A server for as long as the block lasts, and whom it takes the caller for."""
    line = ServerConnection(server, token)
    try:
        me = members((await line.get("/v1/me")).body)
        who = local(read(me["tenant"], str))._replace(actor=read(me["actor"], str))
        yield cast(Engine, Remote(line)), who
    finally:
        await line.close()
