"""The import of records from another store: one operation a record, and what a batch of them does. Pure.

Owns the operation and the words for why a record is skipped. A store loads what a batch names, calls
:func:`settle` and applies the plans, all in one transaction. Does not own what a legacy record says
(``legacy/records.py``) or the loop over a source (``legacy/importing.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from vmem_core import requests
from vmem_core.errors import InvalidRequestError, OperationConflictError, RecordConflictError
from vmem_core.operations import Operation, build_record, changes_of, host_source
from vmem_core.plan import Head, Plan, Reads, Snapshot, StoredReceipt, Write
from vmem_core.records import Kind, Origin, Scope
from vmem_core.results import Verb


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Import(Operation):
    """Take over one legacy record as revision 1, under its own id. No earlier history is invented.

    Args:
        record_id: The legacy id.
        text: What it says.
        origin: ``inferred`` unless the caller vouches for it.
        kind: Of the record.
        importance: None, or 0 to 1.
        metadata: As it will be stored, its legacy times included; checked, and nobody else's.
        said: What of it makes another request: all but the time of the last look at it.
        expires_at: From this instant on it is expired; None: never.
        invalid_at: From this instant on the other system held it for wrong; None: never.
    """

    record_id: str
    text: str
    origin: Origin
    kind: Kind = "semantic"
    importance: float | None = None
    metadata: dict[str, Any]
    said: Sequence[Any] = ()
    expires_at: datetime | None = None
    invalid_at: datetime | None = None

    verb: ClassVar[Verb] = "import"

    def reads(self) -> Reads:
        """Whether the id is free."""
        return Reads(record_ids=(self.record_id,))

    def texts(self) -> Sequence[str]:
        """The text."""
        return (self.text,)

    def request(self) -> str:
        """What the legacy record says, and as whose word it is taken."""
        return requests.canonical(
            self.verb,
            {
                "text": self.text,
                "kind": self.kind,
                "importance": self.importance,
                "said": self.said,
                "origin": self.origin,
            },
        )

    def reason_to_skip(self, head: Head | None, now: datetime) -> str | None:
        """Why a new record is not to be made of it; None if it is.

        Args:
            head: Who holds the id, if anybody does.
            now: The stamp of the commit.
        """
        if head is not None:
            return "forgotten" if head.owned and head.forgotten else "taken"
        if self.expires_at is not None and self.expires_at <= now:
            return "expired"
        if self.invalid_at is not None and self.invalid_at <= now:
            return "invalidated"
        return None

    def plan(self, snapshot: Snapshot) -> Plan:
        """One new record.

        Raises:
            RecordConflictError: If the id is held or was forgotten anywhere in the store.
            InvalidRequestError: If the record is expired or invalid by now.
        """
        reason = self.reason_to_skip(snapshot.heads.get(self.record_id), snapshot.now)
        if reason in ("taken", "forgotten"):
            raise RecordConflictError(self.record_id)
        if reason is not None:
            path = "expires_at" if reason == "expired" else "invalid_at"
            raise InvalidRequestError("is not later than now; leave the record out", path=path)
        return self.create(snapshot)

    def create(self, snapshot: Snapshot) -> Plan:
        """The one new record of an operation that nothing speaks against."""
        record = build_record(  # checked when the operation was made
            self.record_id,
            1,
            self.scope,
            self.text,
            self.kind,
            self.origin,
            "active",
            (host_source(self.text),),
            (),
            self.importance,
            self.metadata,
            snapshot.now,
            snapshot.now,
            self.expires_at,
            self.operation_id,
            snapshot.scope_revision + 1,
        )
        writes = (Write("create", record, True),)
        return self.committed(snapshot, changes_of(writes), writes=writes)


@dataclass(slots=True, repr=False)
class ScopeKnown:
    """What a batch must know of one scope.

    Args:
        revision: The scope's revision; 0 if nothing was ever written.
        now: The stamp of this commit.
        stored: What was committed under the batch's operation ids.
    """

    revision: int
    now: datetime
    stored: MutableMapping[str, StoredReceipt]


@dataclass(slots=True, repr=False)
class Holder:
    """Who holds a record id: the scope, and whether the record was forgotten."""

    scope: Scope | None
    forgotten: bool


def settle(
    operations: Sequence[Import], known: Mapping[Scope, ScopeKnown], holders: dict[str, Holder]
) -> tuple[list[Plan], list[str | None]]:
    """What a batch does, one operation after the other; a refused one fails no other.

    Args:
        operations: In the order of the source.
        known: Every scope of the batch; it moves along with what is planned.
        holders: By record id, for ids of the batch that are not free; it grows with what is planned.

    Returns:
        The plans to apply, in order, and for each operation why it is skipped, or None.
    """
    plans: list[Plan] = []
    reasons: list[str | None] = []
    for operation in operations:
        scope = known[operation.scope]
        plan, reason = _settle_one(operation, scope, holders)
        reasons.append(reason)
        if plan is not None:
            assert plan.request is not None
            plans.append(plan)
            scope.revision = plan.receipt.scope_revision
            scope.stored[operation.operation_id] = StoredReceipt(plan.receipt, plan.request)
            holders[operation.record_id] = Holder(operation.scope, forgotten=False)
    return plans, reasons


def _settle_one(operation: Import, scope: ScopeKnown, holders: Mapping[str, Holder]) -> tuple[Plan | None, str | None]:
    stored = scope.stored.get(operation.operation_id)
    snapshot = Snapshot(scope.revision, scope.now, stored)
    if stored is None:
        reason = operation.reason_to_skip(_head(operation, holders), scope.now)
        return (operation.create(snapshot), None) if reason is None else (None, reason)
    try:
        operation.decide(snapshot)
    except OperationConflictError:
        return None, "changed"
    return None, "already_imported"


def _head(operation: Import, holders: Mapping[str, Holder]) -> Head | None:
    holder = holders.get(operation.record_id)
    if holder is None:
        return None
    return Head(operation.record_id, owned=holder.scope == operation.scope, forgotten=holder.forgotten)
