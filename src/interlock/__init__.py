"""Interlock: a durable job queue and control plane for AI agents."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from interlock import errors as errors
    from interlock import webhooks as webhooks
    from interlock.assemble import App as App
    from interlock.assemble import Queue as Queue
    from interlock.domain.approval import ApprovalKind as ApprovalKind
    from interlock.domain.approval import ApprovalStatus as ApprovalStatus
    from interlock.domain.approval import Decision as Decision
    from interlock.domain.approval import OnDeny as OnDeny
    from interlock.domain.effect import EffectState as EffectState
    from interlock.domain.explain import ReasonCode as ReasonCode
    from interlock.domain.lifecycle import Location as Location
    from interlock.domain.lifecycle import Status as Status
    from interlock.domain.lifecycle import Verb as Verb
    from interlock.domain.progress import Level as Level
    from interlock.domain.schedule import CatchUp as CatchUp
    from interlock.domain.schedule import Overlap as Overlap
    from interlock.domain.shards import ShardSupplier as ShardSupplier
    from interlock.domain.webhook import DeliveryStatus as DeliveryStatus
    from interlock.domain.webhook import Mode as Mode
    from interlock.errors import Error as Error
    from interlock.sdk.context import Child as Child
    from interlock.sdk.context import Context as Context
    from interlock.sdk.current import current as current
    from interlock.sdk.declared import Disagreement as Disagreement
    from interlock.sdk.effect import Done as Done
    from interlock.sdk.exceptions import BudgetExceeded as BudgetExceeded
    from interlock.sdk.exceptions import Declined as Declined
    from interlock.sdk.exceptions import Fail as Fail
    from interlock.sdk.exceptions import JobCancelled as JobCancelled
    from interlock.sdk.exceptions import JobFailed as JobFailed
    from interlock.sdk.exceptions import RateLimited as RateLimited
    from interlock.sdk.exceptions import Release as Release
    from interlock.sdk.exceptions import Retry as Retry
    from interlock.sdk.exceptions import StepMismatch as StepMismatch
    from interlock.sdk.exceptions import Suspended as Suspended
    from interlock.sdk.handle import JobHandle as JobHandle
    from interlock.sdk.queue import ConsumedItem as ConsumedItem
    from interlock.sdk.queue import Item as Item
    from interlock.sdk.replay import ApprovalResult as ApprovalResult
    from interlock.sdk.stream import StreamWriter as StreamWriter
    from interlock.sdk.tasks import Options as Options
    from interlock.sdk.tasks import Task as Task
    from interlock.sdk.values import Agent as Agent
    from interlock.sdk.values import Approval as Approval
    from interlock.sdk.values import ApprovalLink as ApprovalLink
    from interlock.sdk.values import Artifact as Artifact
    from interlock.sdk.values import AuditRow as AuditRow
    from interlock.sdk.values import Backoff as Backoff
    from interlock.sdk.values import Budget as Budget
    from interlock.sdk.values import BulkResult as BulkResult
    from interlock.sdk.values import Caller as Caller
    from interlock.sdk.values import ChainVerification as ChainVerification
    from interlock.sdk.values import ChannelTest as ChannelTest
    from interlock.sdk.values import Chunk as Chunk
    from interlock.sdk.values import Claims as Claims
    from interlock.sdk.values import CreatedSubscription as CreatedSubscription
    from interlock.sdk.values import CreatedToken as CreatedToken
    from interlock.sdk.values import Cron as Cron
    from interlock.sdk.values import Defaults as Defaults
    from interlock.sdk.values import Delivery as Delivery
    from interlock.sdk.values import Effect as Effect
    from interlock.sdk.values import Event as Event
    from interlock.sdk.values import HistoryRow as HistoryRow
    from interlock.sdk.values import Job as Job
    from interlock.sdk.values import JobType as JobType
    from interlock.sdk.values import Limit as Limit
    from interlock.sdk.values import LimitKey as LimitKey
    from interlock.sdk.values import Message as Message
    from interlock.sdk.values import NotificationChannel as NotificationChannel
    from interlock.sdk.values import PruneResult as PruneResult
    from interlock.sdk.values import Published as Published
    from interlock.sdk.values import QueueStats as QueueStats
    from interlock.sdk.values import Reason as Reason
    from interlock.sdk.values import Receipt as Receipt
    from interlock.sdk.values import Schedule as Schedule
    from interlock.sdk.values import Step as Step
    from interlock.sdk.values import Stream as Stream
    from interlock.sdk.values import Subscription as Subscription
    from interlock.sdk.values import Token as Token
    from interlock.sdk.values import UsageTotal as UsageTotal
    from interlock.sdk.values import Vote as Vote
    from interlock.sdk.values import Why as Why
    from interlock.sdk.values import WorkerPresence as WorkerPresence
    from interlock.worker.loop import Worker as Worker

__version__ = "0.1.0"

# Where the public names live; each is loaded when it is first used.
_HOMES = {
    "Agent": "sdk.values",
    "App": "assemble",
    "Approval": "sdk.values",
    "ApprovalKind": "domain.approval",
    "ApprovalLink": "sdk.values",
    "ApprovalResult": "sdk.replay",
    "ApprovalStatus": "domain.approval",
    "Artifact": "sdk.values",
    "AuditRow": "sdk.values",
    "Backoff": "sdk.values",
    "Budget": "sdk.values",
    "BulkResult": "sdk.values",
    "Caller": "sdk.values",
    "CatchUp": "domain.schedule",
    "ChainVerification": "sdk.values",
    "Child": "sdk.context",
    "Chunk": "sdk.values",
    "Claims": "sdk.values",
    "ConsumedItem": "sdk.queue",
    "Context": "sdk.context",
    "ChannelTest": "sdk.values",
    "CreatedSubscription": "sdk.values",
    "NotificationChannel": "sdk.values",
    "CreatedToken": "sdk.values",
    "Cron": "sdk.values",
    "Decision": "domain.approval",
    "Declined": "sdk.exceptions",
    "Defaults": "sdk.values",
    "Delivery": "sdk.values",
    "DeliveryStatus": "domain.webhook",
    "Disagreement": "sdk.declared",
    "Done": "sdk.effect",
    "Effect": "sdk.values",
    "EffectState": "domain.effect",
    "Error": "errors",
    "Event": "sdk.values",
    "Fail": "sdk.exceptions",
    "HistoryRow": "sdk.values",
    "Message": "sdk.values",
    "Item": "sdk.queue",
    "Job": "sdk.values",
    "JobCancelled": "sdk.exceptions",
    "JobFailed": "sdk.exceptions",
    "JobHandle": "sdk.handle",
    "JobType": "sdk.values",
    "Level": "domain.progress",
    "Limit": "sdk.values",
    "LimitKey": "sdk.values",
    "Location": "domain.lifecycle",
    "Mode": "domain.webhook",
    "OnDeny": "domain.approval",
    "Options": "sdk.tasks",
    "Overlap": "domain.schedule",
    "PruneResult": "sdk.values",
    "Published": "sdk.values",
    "Queue": "assemble",
    "QueueStats": "sdk.values",
    "Reason": "sdk.values",
    "ReasonCode": "domain.explain",
    "Receipt": "sdk.values",
    "BudgetExceeded": "sdk.exceptions",
    "RateLimited": "sdk.exceptions",
    "Release": "sdk.exceptions",
    "Retry": "sdk.exceptions",
    "Schedule": "sdk.values",
    "ShardSupplier": "domain.shards",
    "Status": "domain.lifecycle",
    "Step": "sdk.values",
    "StepMismatch": "sdk.exceptions",
    "Stream": "sdk.values",
    "StreamWriter": "sdk.stream",
    "Subscription": "sdk.values",
    "Suspended": "sdk.exceptions",
    "Task": "sdk.tasks",
    "Token": "sdk.values",
    "UsageTotal": "sdk.values",
    "Verb": "domain.lifecycle",
    "Vote": "sdk.values",
    "Why": "sdk.values",
    "Worker": "worker.loop",
    "WorkerPresence": "sdk.values",
    "current": "sdk.current",
}
_MODULES = ("errors", "webhooks")

__all__ = [*_HOMES, *_MODULES]


if not TYPE_CHECKING:  # else every name would pass as one of ours

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return import_module(f"{__name__}.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return [*globals(), *_HOMES, *_MODULES]
