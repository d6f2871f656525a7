"""The parts of a store that run from one body on either engine."""

from __future__ import annotations

from collections.abc import Callable

from interlock.storage.dialect import Database
from interlock.storage.parts.approvals import Approvals
from interlock.storage.parts.artifacts import Artifacts
from interlock.storage.parts.attention import Attention
from interlock.storage.parts.audit import Audit
from interlock.storage.parts.channels import StoredChannels
from interlock.storage.parts.effects import Effects
from interlock.storage.parts.limits import FlowLimits
from interlock.storage.parts.messages import Messages
from interlock.storage.parts.outbox import StoredOutbox
from interlock.storage.parts.reads import Reads
from interlock.storage.parts.redrive import Redrives
from interlock.storage.parts.registry import TypesAndAgents
from interlock.storage.parts.schedules import Schedules
from interlock.storage.parts.sessions import Sessions
from interlock.storage.parts.streams import Streams
from interlock.storage.parts.tokens import Tokens
from interlock.storage.parts.usage import UsageSums
from interlock.storage.parts.workers import Workers


class StoreParts(Reads, Redrives):
    """The base of the store of an engine. `position` reads a cursor of its history chains."""

    def __init__(self, database: Database, position: Callable[[str | None], int | str]) -> None:
        self._database = database
        self.approvals = Approvals(database)
        self.artifacts = Artifacts(database)
        self.attention = Attention(database)
        self.audit = Audit(database, position)
        self.channels = StoredChannels(database)
        self.effects = Effects(database)
        self.limits = FlowLimits(database)
        self.messages = Messages(database)
        self.outbox = StoredOutbox(database)
        self.registry = TypesAndAgents(database)
        self.schedules = Schedules(database)
        self.sessions = Sessions(database)
        self.streams = Streams(database)
        self.tokens = Tokens(database)
        self.usage = UsageSums(database)
        self.workers = Workers(database)
