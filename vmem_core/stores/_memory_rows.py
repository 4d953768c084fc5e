"""The rows of the in-memory store, and what can be said of one row alone.

Owns the shapes. Does not own the lock or the order of things (``memory.py``).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vmem_core.plan import Head, Reads, StoredReceipt, StoredRequest, Written
from vmem_core.records import Record, Scope
from vmem_core.store import Listing, Search
from vmem_core.values import to_micros

if TYPE_CHECKING:
    from vmem_core.index import ScopeIndex
    from vmem_core.indexing import Known

ERASED = StoredRequest(b"", b"")


@dataclass(slots=True)
class RevisionRow:
    """One revision: the store's running number, its content unless pruned, the scope revision that wrote it."""

    entry: int
    record: Record | None  # None: pruned
    scope_revision: int
    pruned_stamp: int = 0  # when a pruned one was recorded: that stays known

    @property
    def recorded_at(self) -> int:
        """When it was recorded, in microseconds since 1970."""
        return self.pruned_stamp if self.record is None else to_micros(self.record.recorded_at)


@dataclass(slots=True)
class MemoryRow:
    """A record for its whole life: head, history, tombstone."""

    number: int
    record_id: str
    scope: ScopeRow
    revisions: list[RevisionRow] = field(default_factory=list)
    forgotten: bool = False
    forgotten_at: int = 0  # the scope revision of the forget
    key: int = 0
    tokens: bytes = b""
    vector: bytes | None = None
    vector_since: int = 0  # the first revision that the vector is of
    past_vectors: list[tuple[int, int, bytes]] = field(default_factory=list)  # since, until, vector
    prepared: tuple[int, bytes | None] | None = None  # of the pending generation: its revision, its vector or a mark
    unembeddable: int = 0  # the revision that the active generation's model has no vector for
    mentioned_by: list[int] = field(default_factory=list)

    @property
    def record(self) -> Record | None:
        """The current revision, or None if forgotten."""
        return None if self.forgotten else self.revisions[-1].record

    @property
    def since(self) -> int:
        """The first of the revisions up to the current one that have its text."""
        found = len(self.revisions)
        for kept in reversed(self.revisions):
            if kept.record is None or self.record is None or kept.record.text != self.record.text:
                break
            found = kept.record.revision
        return found

    def vector_of(self, revision: int) -> bytes | None:
        """The vector of a revision's text, or None if it never had one."""
        if self.vector is not None and self.vector_since <= revision:
            return self.vector
        return next((vector for since, until, vector in self.past_vectors if since <= revision <= until), None)


@dataclass(slots=True)
class ScopeRow:
    """A scope: its revision, its last stamp, its records by number, its receipts, and its index."""

    scope: Scope
    revision: int = 0
    last_stamp: int = 0
    rows: list[MemoryRow] = field(default_factory=list)
    receipts: dict[str, StoredReceipt] = field(default_factory=dict)
    mentions: dict[str, tuple[str, ...]] = field(default_factory=dict)
    messages: set[str] = field(default_factory=set)
    by_key: defaultdict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    changed: set[int] = field(default_factory=set)  # numbers the index has not seen yet
    index: ScopeIndex | None = None
    index_generation: int | None = None


def expired(record: Record, now: int) -> bool:
    """Whether a record is expired at an instant, in microseconds since 1970."""
    return record.expires_at is not None and to_micros(record.expires_at) <= now


def listed(record: Record, listing: Listing, now: int) -> bool:
    """Whether a record belongs in a listing."""
    return (
        listing.status in (None, record.status)
        and listing.kind in (None, record.kind)
        and listing.origin in (None, record.origin)
        and not expired(record, now)
    )


def head_of(row: MemoryRow, scope: ScopeRow, reads: Reads) -> Head:
    """A row as an operation of a scope sees it; of a foreign one nothing is told."""
    if row.scope is not scope:
        return Head(row.record_id, owned=False)
    written = tuple(
        Written(number, revision.scope_revision, revision.record is not None)
        for number, revision in enumerate(row.revisions, 1)
        if reads.revisions
    )
    return Head(row.record_id, True, len(row.revisions), row.record, row.forgotten, written)


def known_of(row: MemoryRow, search: Search) -> Known | None:
    """A record in the revision that was current then, or None if there was none or it was pruned."""
    from vmem_core.indexing import Known

    known = None
    for revision in row.revisions:
        if search.at_scope_revision is not None:
            inside = revision.scope_revision <= search.at_scope_revision
        else:
            at = search.recorded_as_of
            inside = revision.record is None or (at is not None and revision.record.recorded_at <= at)
        known = revision if inside else known
    if known is None or known.record is None:
        return None
    return Known(row.number, known.entry, known.record, row.vector_of(known.record.revision))
