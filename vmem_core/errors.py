"""The errors a caller can meet.

    VmemError
    ├── InvalidRequestError (also ValueError)      path
    ├── OperationConflictError                     operation_id
    ├── RevisionConflictError                      expected_revision, actual_revision, attempts
    ├── RecordConflictError                        record_id
    ├── RecordNotFoundError (also LookupError)     record_id
    ├── AssertedRecordError                        record_id
    ├── EmbeddingMismatchError                     active_model, active_dims, model, dims
    ├── BudgetExceededError                        code: budget_exceeded, model_not_allowed, price_unknown
    ├── SchemaVersionError                         found, supported
    ├── StoreUnavailableError                      retryable
    └── UnsupportedError

Owns the types, their codes and their words. No message holds memory text: a message names the place of a
fault (a path such as ``metadata.tags[0]``), never the value that stands there.
"""

from __future__ import annotations

from typing import Any, ClassVar


def _rebuild(cls: type[VmemError], message: str, state: dict[str, Any]) -> VmemError:
    error = cls.__new__(cls)
    Exception.__init__(error, message)
    error.__dict__.update(state)
    return error


class VmemError(Exception):
    """Whatever goes wrong in this library; ``code`` is stable and in snake case.

    Never raised itself: it is the parent of all.

    What to do:
        Catch it to catch everything that this library raises, and tell the cases apart by ``code``.

    >>> try:
    ...     raise RecordNotFoundError("r1")
    ... except VmemError as error:
    ...     print(error.code, error.record_id)
    record_not_found r1
    """

    code: str = "error"
    fields: ClassVar[tuple[str, ...]] = ()

    def __init__(self, message: str) -> None:
        super().__init__(message)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), str(self), dict(self.__dict__))


class InvalidRequestError(VmemError, ValueError):
    """A value that cannot be taken, found before anything was written.

    Such as a blank or over-long text, a NUL character, a naive datetime, NaN in metadata, an unknown kind, or an
    embedder's answer of the wrong shape. Also a ``ValueError``.

    What to do:
        Correct what stands at ``path``. The same call fails again.

    Args:
        message: What is wrong and what to do, without the value.
        path: Where it stands, such as ``"metadata.tags[0]"``.
    """

    code = "invalid_request"
    fields = ("path",)

    def __init__(self, message: str, *, path: str) -> None:
        self.path = path
        super().__init__(f"{path}: {message}")


class OperationConflictError(VmemError):
    """The operation id was used in this scope for another request.

    What to do:
        Send the original request to get its receipt, or choose a new operation id.
    """

    code = "operation_conflict"
    fields = ("operation_id",)

    def __init__(self, operation_id: str) -> None:
        self.operation_id = operation_id
        super().__init__(
            f"operation {operation_id!r} was committed in this scope for a different request; "
            "send the same request again to replay it, or use a new operation_id"
        )


class RevisionConflictError(VmemError):
    """The revision a write was planned against is no longer the current one.

    Another writer came first: ``expected_revision`` is not current, ``actual_revision`` is. For a write that
    reconciles or extracts, the two are revisions of the scope.

    What to do:
        Read again, decide again, and send with the new number.

    Args:
        expected_revision: What the writer planned against.
        actual_revision: What is current now.
        attempts: How often the write was planned, from 1.
    """

    code = "revision_conflict"
    fields = ("expected_revision", "actual_revision", "attempts")

    def __init__(self, expected_revision: int, actual_revision: int, attempts: int = 1) -> None:
        self.expected_revision, self.actual_revision, self.attempts = expected_revision, actual_revision, attempts
        super().__init__(
            f"expected revision {expected_revision}, but {actual_revision} is current (attempts: {attempts}); "
            "read again and decide anew"
        )


class RecordConflictError(VmemError):
    """The record id cannot be used: it is taken, or it was forgotten, in whatever scope.

    Which of the two is not told, since that would tell of other scopes.

    What to do:
        Use another id, or let the library make one.
    """

    code = "record_conflict"
    fields = ("record_id",)

    def __init__(self, record_id: str) -> None:
        self.record_id = record_id
        super().__init__(f"record id {record_id!r} is not available; use another id, or let the library make one")


class RecordNotFoundError(VmemError, LookupError):
    """No record of this id in this scope: it is unknown, or of another scope. Also a ``LookupError``.

    What to do:
        Check the id, and the scope of the session.
    """

    code = "record_not_found"
    fields = ("record_id",)

    def __init__(self, record_id: str) -> None:
        self.record_id = record_id
        super().__init__(f"no record {record_id!r} in this scope; check the id and the scope of the session")


class AssertedRecordError(VmemError):
    """A model tried to revise or retract what the host asserted.

    What to do:
        Let the model add a record of its own. To change the asserted one, do it as the host.
    """

    code = "asserted_record"
    fields = ("record_id",)

    def __init__(self, record_id: str) -> None:
        self.record_id = record_id
        super().__init__(f"record {record_id!r} is asserted by the host; a model may not change it: add a new record")


class EmbeddingMismatchError(VmemError):
    """A vector of another model or size than the generation it is for: the active one, or the one that is filled.

    What to do:
        Use the embedder that the store was filled with, or move the store to the other one with ``reembed()`` and give
        sessions a ``next_embedder`` meanwhile.

    Args:
        active_model: Model id of that generation.
        active_dims: Its size, in dimensions.
        model: Model id of the vector that came.
        dims: Its size, in dimensions.
    """

    code = "embedding_mismatch"
    fields = ("active_model", "active_dims", "model", "dims")

    def __init__(self, active_model: str, active_dims: int, model: str, dims: int) -> None:
        self.active_model, self.active_dims, self.model, self.dims = active_model, active_dims, model, dims
        super().__init__(
            f"this vector is of {model!r} with {dims} dimensions, the store's generation of {active_model!r} with "
            f"{active_dims}; use the generation's model, or move the store to the other one with reembed()"
        )


class BudgetExceededError(VmemError):
    """A model call that the ledger refused before it ran.

    Causes:
        budget_exceeded: With this call the ledger would pass ``max_tokens`` or ``max_cost``.
        model_not_allowed: The model is not one of the ledger's ``allowed_models``.
        price_unknown: With ``unknown_price="reject"``, the model has no price, or the callable reports no usage.

    What to do:
        budget_exceeded: Raise the limit, or go on with a new ledger.
        model_not_allowed: Allow the model, or name it with the session's ``llm_model_id`` or ``embedder_model_id``.
        price_unknown: Give the ledger the model's price, and mark the callable with ``accounted(...)``.

    Args:
        message: What was refused and what to do.
        code: ``budget_exceeded``, ``model_not_allowed`` or ``price_unknown``.
    """

    code = "budget_exceeded"
    fields = ("code",)

    def __init__(self, message: str, *, code: str = "budget_exceeded") -> None:
        self.code = code
        super().__init__(message)


class SchemaVersionError(VmemError):
    """The store was written by a newer version of the library. Nothing was touched.

    What to do:
        Install the newer version, or one after it.
    """

    code = "schema_version"
    fields = ("found", "supported")

    def __init__(self, found: int, supported: int) -> None:
        self.found, self.supported = found, supported
        super().__init__(
            f"the store has schema version {found}, this library knows up to {supported}; "
            "install a newer versioned-memory (nothing was changed)"
        )


class StoreUnavailableError(VmemError):
    """The store cannot be opened, read or written now.

    No such folder, no database, read-only, full, locked by another process, closed: the message says which.

    What to do:
        If ``retryable``, try again later with the same operation id. If not, mend what the message names.

    Args:
        message: What happened and what to do.
        retryable: Whether the same call may succeed later without a change by hand.
    """

    code = "store_unavailable"
    fields = ("retryable",)

    def __init__(self, message: str, *, retryable: bool) -> None:
        self.retryable = retryable
        super().__init__(message)


class UnsupportedError(VmemError):
    """A call that this store, session or place cannot serve, such as ``.sync`` from the library's own event loop.

    What to do:
        Use what the message names.
    """

    code = "unsupported"
