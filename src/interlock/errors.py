"""All errors of Interlock, one class per situation.

Error
├── Malformed             400  the text is not valid JSON, or breaks a rule for JSON
├── Unauthenticated       401  the credential is missing or invalid
├── Forbidden             403  the credential does not allow this
│   ├── FreshSignInRequired    the decision needs a person who has just signed in
│   └── SignInFailed           a sign-in with OpenID Connect that is not valid
├── NotFound              404  no such job for this tenant
├── Conflict              409
│   ├── LeaseLost              the fence is stale
│   ├── AlreadyFinished        another operation ended the lease, or the job is terminal
│   ├── NotRunning             the worker itself has already finished the run
│   ├── CheckpointConflict     an old checkpoint number with different data
│   ├── StreamConflict         an append at an offset that has other chunks, or leaves a gap
│   ├── MessageConflict        a message ID that was already sent with other content
│   ├── TopicConflict          a message ID already sent to the topic with other content
│   ├── EffectConflict         an outcome of an effect that differs from the recorded one
│   ├── LimitReached           the job has no room for more, such as chunks of its streams
│   ├── CancelRequested        an approval request while cancellation is pending
│   ├── NoCancelRequested      an acknowledgement of a cancellation that was not requested
│   ├── NotEditable            an edit of a job that is not waiting for a worker
│   ├── NotTerminal            a redrive of a job that is not terminal
│   ├── NotFailed              an acknowledgement of a job that has not failed
│   ├── AlreadyDecided         a decision or vote that differs from the recorded one
│   ├── DigestMismatch         a decision with the digest of a different request
│   ├── TokenExists            the idempotency key was already used for a token
│   ├── InUse                  unfinished jobs name what is to be deleted
│   │   ├── AgentInUse         an agent with unfinished jobs
│   │   └── LimitInUse         a limit or budget that unfinished jobs name
│   ├── BrokenJob              a row that violates a constraint; doctor --repair ends it
│   ├── WouldDeadlock          a wait for a child that could never run
│   └── ParentNotActive        a child for a job that is terminal or being cancelled
├── Gone                  410
│   ├── ApprovalExpired        the approval expired before a decision
│   └── ApprovalVoid           the job no longer waits for the approval
├── PreconditionFailed    412  the job has a different version
├── TooLarge              413
├── Invalid               422  a value breaks a rule
│   ├── IdempotencyKeyReuse    the same idempotency key with a different body
│   ├── Unsatisfiable     416  a range beyond the end of a file
│   ├── UnknownType            an unregistered type, if `strict_types` is on
│   └── UnknownAgent           an unregistered agent, if `implicit_agents` is off
├── ArtifactLost          500  the bytes of an artifact are missing or damaged
├── ArtifactsNotConfigured  501  no artifact storage is configured
├── Unavailable           503  the database is unreachable or overloaded
│   ├── Indeterminate          the connection broke during a commit
│   └── TenantMoved            the tenant is on another shard, or is being moved there
├── JobFailed, JobCancelled    the job whose result was awaited did not succeed (SDK only)
├── StepMismatch               a replay differs from the saved steps (SDK only)
└── Fatal                      the process must stop
    ├── StorageBroken          a failed fsync, a corrupt page
    ├── DatabasePromoted       a write to a SQLite file that was promoted to PostgreSQL
    └── SchemaMismatch         the database schema is older or newer than this program
"""

from collections.abc import Sequence
from typing import NamedTuple, Self


class Error(Exception):
    """Base class of all Interlock errors."""

    code = "error"
    status = 500
    pointer: str = ""  # JSON pointer to the invalid value in the request, if known


class Malformed(Error):
    """The text is not valid JSON, or breaks a rule such as unique keys."""

    code = "malformed"
    status = 400

    def __init__(self, message: str, *, pointer: str = "") -> None:
        self.pointer = pointer
        super().__init__(message)


class Unauthenticated(Error):
    """The credential is missing or invalid; the response gives no reason."""

    code = "unauthenticated"
    status = 401

    def __init__(self) -> None:
        super().__init__("a valid credential is required: send it as Authorization: Bearer …")


class Forbidden(Error):
    """The credential is valid, but does not allow this."""

    code = "forbidden"
    status = 403


class FreshSignInRequired(Forbidden):
    """The risk of the approval requires a person who has just signed in."""

    code = "fresh_sign_in_required"

    def __init__(self, risk: str, seconds: int) -> None:
        self.risk, self.seconds = risk, seconds
        super().__init__(
            f"risk {risk}: expected a person who signed in within the last {seconds} s; sign in again on the dashboard"
        )


class SignInFailed(Forbidden):
    """The response or a token of the identity provider is not valid."""

    code = "sign_in_failed"


class NotFound(Error):
    """The job or other resource does not exist for this tenant."""

    code = "not_found"
    status = 404

    def __init__(self, id: str, *, resource: str = "job", hint: str = "") -> None:
        self.id, self.resource = id, resource  # the ID is empty if it would be a secret
        missing = f"no {resource} {id}" if id else f"no such {resource}"
        super().__init__(f"{missing}: {hint}" if hint else missing)


class Conflict(Error):
    """The job is not in a state that allows this."""

    code = "conflict"
    status = 409


class LeaseLost(Conflict):
    """The worker's lease has ended."""

    code = "lease_lost"

    def __init__(self, job_id: str, fence: int) -> None:
        self.job_id, self.fence = job_id, fence
        super().__init__(f"job {job_id}: lease lost, fence {fence} is stale; stop this run")


class BrokenJob(Conflict):
    """The row of the job violates a database constraint, so it cannot be changed."""

    code = "broken_job"

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(
            f"job {job_id}: its row violates a database constraint, because it was changed with constraints disabled; "
            "run interlock doctor to see the constraint, and interlock doctor --repair to end the job"
        )


class AlreadyFinished(Conflict):
    """The lease was ended by another operation, or the job is terminal."""

    code = "already_finished"

    def __init__(self, job_id: str, how: str) -> None:
        self.job_id, self.how = job_id, how
        super().__init__(f"job {job_id}: already finished ({how})")


class NotRunning(Conflict):
    """A heartbeat or checkpoint came after the worker's own finish."""

    code = "not_running"

    def __init__(self, job_id: str, fence: int) -> None:
        self.job_id, self.fence = job_id, fence
        super().__init__(f"job {job_id}: the run with fence {fence} is already finished")


class CheckpointConflict(Conflict):
    """An old or equal checkpoint number came with different data."""

    code = "checkpoint_conflict"

    def __init__(self, job_id: str, seq: int, current: int) -> None:
        self.job_id, self.seq, self.current = job_id, seq, current
        super().__init__(f"job {job_id}: checkpoint {seq} is not newer than {current}: read it and continue from there")


class StreamConflict(Conflict):
    """An append begins at an offset that already has other chunks, or beyond the end of the stream."""

    code = "stream_conflict"

    def __init__(self, job_id: str, stream: str, offset: int, next: int) -> None:
        self.job_id, self.stream, self.offset, self.next = job_id, stream, offset, next
        super().__init__(
            f"job {job_id}: stream {stream!r} continues at offset {next}, and the append at {offset} does not repeat "
            "chunks of this lease; append at the end"
        )


class MessageConflict(Conflict):
    """A message with this ID was already sent to the job, with another name or payload."""

    code = "message_conflict"

    def __init__(self, job_id: str, message_id: str) -> None:
        self.job_id, self.message_id = job_id, message_id
        super().__init__(f"job {job_id}: message {message_id!r} was already sent with other content; use a new id")


class TopicConflict(Conflict):
    """A message with this ID was already sent to the topic, with another payload."""

    code = "topic_conflict"

    def __init__(self, topic: str, message_id: str) -> None:
        self.topic, self.message_id = topic, message_id
        super().__init__(f"topic {topic!r}: message {message_id!r} was already sent with other content; use a new id")


class EffectConflict(Conflict):
    """An effect is already done, with another result, or is known not to have happened and was not begun again."""

    code = "effect_conflict"

    def __init__(self, job_id: str, effect: str, occurrence: int, state: str) -> None:
        self.job_id, self.effect, self.occurrence, self.state = job_id, effect, occurrence, state
        next_step = "the recorded result is final" if state == "done" else "begin it again first"
        super().__init__(f"job {job_id}: effect {effect!r}, occurrence {occurrence}, is {state}: {next_step}")


class LimitReached(Conflict):
    """The job has reached a limit on what it may store."""

    code = "limit_reached"

    def __init__(self, job_id: str, what: str, limit: int) -> None:
        self.job_id, self.what, self.limit = job_id, what, limit
        super().__init__(f"job {job_id}: the limit of {limit} {what} is reached")


class CancelRequested(Conflict):
    """A worker requested an approval while a cancel is pending."""

    code = "cancel_requested"

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(f"job {job_id}: cancellation is pending; acknowledge it instead of requesting approval")


class NoCancelRequested(Conflict):
    """A worker acknowledged a cancel that was not requested."""

    code = "no_cancel_requested"

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(f"job {job_id}: no cancel was requested")


class TokenExists(Conflict):
    """The idempotency key was already used for a token, whose secret is shown only once."""

    code = "token_exists"

    def __init__(self, key: str, token_id: str) -> None:
        self.key, self.token_id = key, token_id
        super().__init__(
            f"idempotency key {key!r} was already used for token {token_id}; its secret cannot be shown again: "
            f"revoke {token_id} and retry with a new key"
        )


class ParentNotActive(Conflict):
    """A terminal job, or one that is being cancelled, accepts no children."""

    code = "parent_ended"

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(f"parent {job_id} is terminal or being cancelled: it accepts no new children")


class WouldDeadlock(Conflict):
    """The job would wait for a child that needs a slot of a strict agent, and waiting jobs hold all its slots."""

    code = "would_deadlock"

    def __init__(self, job_id: str, child_id: str) -> None:
        self.job_id, self.child_id = job_id, child_id
        super().__init__(
            f"job {job_id} would wait indefinitely for child {child_id}: all slots of a strict agent that it needs are "
            "held by waiting jobs; raise max_concurrency, turn strict off, or give the child another agent"
        )


class NotEditable(Conflict):
    """Only a job that waits for a worker can be edited."""

    code = "not_editable"

    def __init__(self, job_id: str, status: str) -> None:
        self.job_id = job_id
        super().__init__(f"job {job_id} is {status}: only a queued or retrying job can be edited")


class NotTerminal(Conflict):
    """Only a terminal job can be redriven."""

    code = "not_ended"

    def __init__(self, job_id: str, status: str) -> None:
        self.job_id, self.state = job_id, status
        super().__init__(f"job {job_id} is {status}: only a terminal job can be redriven")


class NotFailed(Conflict):
    """Only a failed or dead-letter job can be acknowledged."""

    code = "not_failed"

    def __init__(self, job_id: str, status: str) -> None:
        self.job_id, self.state = job_id, status
        super().__init__(f"job {job_id} is {status}: only a failed or dead-letter job can be acknowledged")


class AlreadyDecided(Conflict):
    """The approval already has a different decision, or this voter a different vote."""

    code = "already_decided"

    def __init__(self, approval_id: str, how: str) -> None:
        self.approval_id, self.how = approval_id, how
        super().__init__(f"approval {approval_id}: already decided ({how})")


class DigestMismatch(Conflict):
    """The digest of the decision differs from that of the request."""

    code = "digest_mismatch"

    def __init__(self, approval_id: str) -> None:
        self.approval_id = approval_id
        super().__init__(f"approval {approval_id}: the digest does not match the request; read the approval again")


class Gone(Error):
    """The approval can no longer be decided."""

    code = "gone"
    status = 410
    why = "can no longer be decided"

    def __init__(self, approval_id: str) -> None:
        self.approval_id = approval_id
        super().__init__(f"approval {approval_id} {self.why}")


class ApprovalExpired(Gone):
    """The approval expired before a decision."""

    code = "approval_expired"
    why = "expired before a decision"


class ApprovalVoid(Gone):
    """The job no longer waits for this decision: it was cancelled, or its deadline passed."""

    code = "approval_void"
    why = "is void: its job no longer waits for it"


class PreconditionFailed(Error):
    """The job has changed since the caller read it."""

    code = "precondition_failed"
    status = 412

    def __init__(self, job_id: str, expected: int, version: int) -> None:
        self.job_id, self.expected, self.version = job_id, expected, version
        why = f"has version {version}, not {expected}" if expected else "the ETag is not from this job"
        super().__init__(f"job {job_id}: {why}; read it again")


class InUse(Conflict):
    """Unfinished jobs name what is to be deleted."""

    code = "in_use"


class AgentInUse(InUse):
    """An agent with unfinished jobs cannot be deleted."""

    def __init__(self, kind: str, id: str) -> None:
        self.kind, self.id = kind, id
        super().__init__(f"agent {kind}/{id} has unfinished jobs: wait for them or cancel them first")


class LimitInUse(InUse):
    """A limit or budget that unfinished jobs name cannot be deleted."""

    def __init__(self, name: str) -> None:
        self.name = name.removeprefix("budget:")
        what = "limit" if self.name == name else "budget"
        super().__init__(f"unfinished jobs name {what} {self.name!r}: wait for them or cancel them first")


class TooLarge(Error):
    """A value is larger than its limit."""

    code = "too_large"
    status = 413

    def __init__(self, what: str, size: int, limit: int) -> None:
        self.what, self.size, self.limit = what, size, limit
        way_out = "; store it as an artifact and refer to it in the result" if what == "result" else ""
        super().__init__(f"{what} is {size} bytes: the limit is {limit}{way_out}")


class FieldError(NamedTuple):
    """One invalid value in a request: its JSON pointer and the error message."""

    pointer: str
    message: str


class Invalid(Error):
    """A value is invalid; `pointer` names it, and `errors` lists all of them."""

    code = "invalid"
    status = 422

    def __init__(self, message: str, *, pointer: str = "", faults: Sequence[FieldError] = ()) -> None:
        self.faults = tuple(faults) or (FieldError(pointer, message),)
        super().__init__(message)

    @property
    def pointer(self) -> str:
        return self.faults[0].pointer

    @pointer.setter
    def pointer(self, place: str) -> None:
        self.faults = (FieldError(place, self.faults[0].message), *self.faults[1:])

    def within(self, place: str) -> Self:
        """Prefix the pointer of every field error, and return this error."""
        self.faults = tuple(FieldError(place + pointer, message) for pointer, message in self.faults)
        return self


class IdempotencyKeyReuse(Invalid):
    """The idempotency key was already used with a different body."""

    code = "idempotency_key_reuse"

    def __init__(self, key: str, job_id: str, *, what: str = "job") -> None:
        self.key, self.job_id, self.what = key, job_id, what
        given = f"idempotency key {key!r} was already used for {what} {job_id} with a different body"
        super().__init__(given, pointer="/idempotency_key" if what == "job" else "/key")


class UnknownType(Invalid):
    """The type is not registered, and only registered types are accepted."""

    code = "unknown_type"

    def __init__(self, job_type: str) -> None:
        self.job_type = job_type
        super().__init__(f"type {job_type!r} is not registered", pointer="/type")


class UnknownAgent(Invalid):
    """The agent is not registered, and only registered agents are accepted."""

    code = "unknown_agent"

    def __init__(self, kind: str, id: str) -> None:
        self.kind, self.id = kind, id
        super().__init__(f"agent {kind}/{id} is not registered", pointer="/agent")


class Unsatisfiable(Invalid):
    """The byte range begins after the end of the file, or there are several ranges."""

    code = "range_not_satisfiable"
    status = 416

    def __init__(self, size: int, why: str = "the range begins after the end") -> None:
        self.size = size
        super().__init__(f"{why}: there are {size} bytes", pointer="/range")


class ArtifactLost(Error):
    """The content of an artifact is missing or differs from what was stored."""

    code = "artifact_lost"

    def __init__(self, artifact_id: str, why: str) -> None:
        self.artifact_id = artifact_id
        super().__init__(f"artifact {artifact_id}: {why}; check the artifact storage, or restore a backup")


class Unavailable(Error):
    """The database is unreachable or overloaded; nothing was changed, retry."""

    code = "unavailable"
    status = 503
    public: str = "the database is unavailable; nothing was changed, retry"
    """The message for API callers; the full message may name files, hosts and roles, and is logged."""

    def __init__(self, message: str, *, public: str | None = None) -> None:
        self.public = public or type(self).public
        super().__init__(message)


class Indeterminate(Unavailable):
    """The connection broke during a commit: the change may or may not have happened; repeat the call."""

    code = "indeterminate"
    public = "the connection to the database broke; the change may or may not have happened, repeat the call"


class ArtifactsNotConfigured(Error):
    """No artifact storage is configured; a retry does not help."""

    code = "artifacts_not_configured"
    status = 501

    def __init__(self) -> None:
        super().__init__("artifact storage is not configured: set artifacts to a directory or a bucket")


class TenantMoved(Unavailable):
    """The tenant is on another shard, or is being moved; nothing was changed."""

    public = "this tenant is being moved to another shard: retry"

    def __init__(self, message: str = public) -> None:
        super().__init__(message)


class Fatal(Error):
    """The process cannot continue safely and must stop."""

    code = "fatal"
    public: str = "the server stops because it cannot use its database safely; see the server log for the cause"


class StorageBroken(Fatal):
    """A failed fsync or a corrupt page: the server writes nothing more until an operator intervenes."""

    code = "storage_broken"


class DatabasePromoted(Fatal):
    """The SQLite file was promoted to PostgreSQL and takes no more writes."""

    code = "database_promoted"

    def __init__(self, target: str) -> None:
        self.target = target  # without a password
        message = f"this database was promoted to {target}: use that one; this file takes no more writes"
        super().__init__(message)
        self.public = message


class SchemaMismatch(Fatal):
    """The database schema does not match this version of Interlock."""

    code = "schema_mismatch"
