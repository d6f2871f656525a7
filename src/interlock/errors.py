"""Everything Interlock refuses, one class per situation.

Error
├── Malformed             400  the text is not the JSON we take
├── NotFound              404  no such job for this tenant
├── Conflict              409
│   ├── LeaseLost              the fence no longer holds the job
│   ├── AlreadyFinished        the grant, or the job, has ended
│   ├── NotRunning             the caller itself has finished the grant
│   ├── CheckpointConflict     an old checkpoint number with other data
│   ├── NoCancelRequested      an acknowledgement of nothing
│   └── ParentEnded            a child for a job that ended or is being cancelled
├── TooLarge              413
├── Invalid               422  a value outside the rules
│   └── IdempotencyKeyReuse    the same key with another body
├── Unavailable           503  the database cannot be reached now
│   └── Indeterminate          the connection broke around a commit
└── Fatal                      the process must stop
    ├── StorageBroken          a failed fsync, a corrupt page
    └── SchemaMismatch         the database is older or newer than this program
"""

from __future__ import annotations


class Error(Exception):
    """The base of everything Interlock raises on purpose."""

    code = "error"
    status = 500


class Malformed(Error):
    """The text is not the JSON that Interlock takes."""

    code = "malformed"
    status = 400

    def __init__(self, message: str, *, pointer: str = "") -> None:
        self.pointer = pointer
        super().__init__(message)


class NotFound(Error):
    """No such thing exists for this tenant."""

    code = "not_found"
    status = 404

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(f"no job {job_id}")


class Conflict(Error):
    """The job is not in a state that allows this."""

    code = "conflict"
    status = 409


class LeaseLost(Conflict):
    """A worker reported on a job that its grant no longer holds."""

    code = "lease_lost"

    def __init__(self, job_id: str, fence: int) -> None:
        self.job_id, self.fence = job_id, fence
        super().__init__(f"job {job_id}: fence {fence} no longer holds the lease; stop working on it")


class AlreadyFinished(Conflict):
    """The grant was ended by another verb, or the job has ended for good."""

    code = "already_finished"

    def __init__(self, job_id: str, how: str) -> None:
        self.job_id, self.how = job_id, how
        super().__init__(f"job {job_id}: already finished ({how})")


class NotRunning(Conflict):
    """A heartbeat or checkpoint came after the worker's own finish."""

    code = "not_running"

    def __init__(self, job_id: str, fence: int) -> None:
        self.job_id, self.fence = job_id, fence
        super().__init__(f"job {job_id}: the run under fence {fence} has been finished")


class CheckpointConflict(Conflict):
    """An old or equal checkpoint number came with other data."""

    code = "checkpoint_conflict"

    def __init__(self, job_id: str, seq: int, current: int) -> None:
        self.job_id, self.seq, self.current = job_id, seq, current
        super().__init__(
            f"job {job_id}: checkpoint {seq} is not newer than {current}; read it again and go on from there"
        )


class NoCancelRequested(Conflict):
    """A worker acknowledged a cancel that nobody asked for."""

    code = "no_cancel_requested"

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(f"job {job_id}: no cancel was requested")


class ParentEnded(Conflict):
    """No child is born under a job that has ended or is being cancelled."""

    code = "parent_ended"

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(f"parent {job_id} has ended or is being cancelled; it takes no more children")


class TooLarge(Error):
    """A value is larger than its limit."""

    code = "too_large"
    status = 413

    def __init__(self, what: str, size: int, limit: int) -> None:
        self.what, self.size, self.limit = what, size, limit
        super().__init__(f"{what} has {size} bytes; at most {limit} are taken")


class Invalid(Error):
    """A value is outside the rules; pointer says which."""

    code = "invalid"
    status = 422

    def __init__(self, message: str, *, pointer: str = "") -> None:
        self.pointer = pointer
        super().__init__(message)


class IdempotencyKeyReuse(Invalid):
    """An idempotency key came again with another body."""

    code = "idempotency_key_reuse"

    def __init__(self, key: str, job_id: str) -> None:
        self.key, self.job_id = key, job_id
        super().__init__(
            f"idempotency key {key!r} belongs to job {job_id}, which was enqueued with another body",
            pointer="/idempotency_key",
        )


class Unavailable(Error):
    """The database cannot be reached or is overloaded; nothing was changed, try again."""

    code = "unavailable"
    status = 503


class Indeterminate(Unavailable):
    """The connection broke around a commit: the change may or may not have happened; repeat the call."""

    code = "indeterminate"


class Fatal(Error):
    """The process cannot go on safely and must stop."""

    code = "fatal"


class StorageBroken(Fatal):
    """A failed fsync or a corrupt page: nothing more is written until a person has looked."""

    code = "storage_broken"


class SchemaMismatch(Fatal):
    """The database schema does not fit this version of Interlock."""

    code = "schema_mismatch"
