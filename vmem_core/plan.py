"""What passes between an operation and a store: what is read, the snapshot, the plan.

Owns these shapes and nothing else: the rules that turn a snapshot into a plan are in ``operations.py``, the
statements that load the one and apply the other are in the stores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from vmem_core.records import Record
from vmem_core.results import Generation, Receipt


@dataclass(slots=True, repr=False)
class Reads:
    """What an operation needs to know before it decides, besides its scope, receipt and generation.

    Args:
        record_ids: Records whose heads are needed, of whatever scope.
        revisions: Whether the heads come with all their revisions.
        equal_texts: Keys (``text_key``) of texts whose active records are needed.
        whole_scope: Whether every record of the scope is needed, forgotten ones too.
        message_ids: Messages of which must be known whether they were read before.
    """

    record_ids: tuple[str, ...] = ()
    revisions: bool = False
    equal_texts: tuple[int, ...] = ()
    whole_scope: bool = False
    message_ids: tuple[str, ...] = ()


@dataclass(slots=True, repr=False)
class Written:
    """That a revision was written: its number, the scope revision, and whether its content is still kept."""

    revision: int
    scope_revision: int
    kept: bool = True


@dataclass(slots=True, repr=False)
class Head:
    """A record as an operation sees it.

    Args:
        record_id: Its id.
        owned: Whether it is of the operation's scope. Of a foreign one nothing else is told.
        revision: Its current revision, 0 if unknown.
        record: The current revision; None if forgotten or foreign, or if only numbers were asked for.
        forgotten: Whether it was forgotten.
        revisions: Every revision ever written, ascending, if asked for.
    """

    record_id: str
    owned: bool
    revision: int = 0
    record: Record | None = None
    forgotten: bool = False
    revisions: tuple[Written, ...] = ()


@dataclass(slots=True, repr=False)
class StoredRequest:
    """The salted digest of a request; both empty once the receipt is redacted."""

    salt: bytes
    digest: bytes

    @classmethod
    def of(cls, canonical: str, salt: bytes) -> StoredRequest:
        """The digest of a canonical request under a salt of its own."""
        import hashlib

        return cls(salt, hashlib.sha256(salt + canonical.encode("utf-8")).digest())


@dataclass(slots=True, repr=False)
class StoredReceipt:
    """A committed operation: its receipt and the digest of its request."""

    receipt: Receipt
    request: StoredRequest


@dataclass(slots=True, repr=False)
class Snapshot:
    """What a store knows at the moment of the decision, inside the transaction.

    Args:
        scope_revision: Of the operation's scope; 0 if nothing was ever written.
        now: The stamp of this commit: the store's clock, never earlier than the scope's last stamp.
        stored: What was committed under the operation's id, if anything.
        heads: By record id; an id that no scope ever held is missing.
        equals: Active, unexpired records of the scope by text key.
        generation: The active generation, if any.
        mentions: Ids of the records that the stored operation met without writing them.
        processed: Those of the messages asked for that were read before.
    """

    scope_revision: int
    now: datetime
    stored: StoredReceipt | None = None
    heads: Mapping[str, Head] = field(default_factory=dict)
    equals: Mapping[int, tuple[Record, ...]] = field(default_factory=dict)
    generation: Generation | None = None
    mentions: tuple[str, ...] = ()
    processed: frozenset[str] = frozenset()


@dataclass(slots=True, repr=False)
class Survey:
    """What a plan is made against, from one read: a scope's revision and the records that matter.

    Args:
        scope_revision: Of the scope; 0 if nothing was ever written.
        similar: For each search, the best active records, in order.
        equals: By text key: the active records that may be of equal text.
    """

    scope_revision: int
    similar: tuple[tuple[Record, ...], ...]
    equals: Mapping[int, tuple[Record, ...]]


@dataclass(slots=True, repr=False)
class Kept:
    """What is left of a revision that somebody refers to.

    Args:
        record: The revision; None if it is not kept.
        gone: Whether the scope has no such record (any more).
    """

    record: Record | None
    gone: bool


@dataclass(slots=True, repr=False)
class Vectors:
    """Embedded texts on their way into a store.

    Args:
        model: The model's id.
        dims: Dimensions of each vector.
        by_text: Unit float32 vectors as little-endian bytes; None: not embeddable.
    """

    model: str
    dims: int
    by_text: Mapping[str, bytes | None]

    def of(self, text: str) -> bytes | None:
        """The vector of a text, or None."""
        return self.by_text.get(text)


@dataclass(slots=True, repr=False)
class Write:
    """One revision to be written.

    Args:
        action: What happens to the record.
        record: The new revision, stamped.
        text_changed: Whether search tokens must be made anew, and the old vector must go.
        vector: The vector of the text. None: an unchanged text keeps the one it has, a changed one has none.
    """

    action: Literal["create", "revise", "retract"]
    record: Record
    text_changed: bool
    vector: bytes | None = None


@dataclass(slots=True, repr=False)
class Forgotten:
    """What a forget meets at one id.

    Args:
        record_id: The id.
        revisions: The revisions it deletes now, ascending.
        already: Whether the record was forgotten before.
        known: Whether the scope ever had the record.
    """

    record_id: str
    revisions: tuple[int, ...] = ()
    already: bool = False
    known: bool = False


@dataclass(slots=True, repr=False)
class Plan:
    """What a store must make durable in one transaction, or nothing of it.

    Args:
        receipt: The receipt, stamped.
        request: The digest to keep beside it; None on a replay: then nothing is applied.
        writes: Revisions to write, in the order of the result.
        forgets: Ids whose every revision, vector, token and source goes; the rows stay as tombstones.
        redacts: Scope revisions whose receipts lose salt and digest and are marked redacted.
        mentions: Ids of records that were met but not written (their forget redacts this receipt too).
        starts: Model id and size of a generation that this write starts, or None.
        forgotten: What the caller is told of each forgotten id.
        present: Records met but not written, for the answer.
        messages: Ids of messages that were read, to be kept: they are never read again.
    """

    receipt: Receipt
    request: StoredRequest | None = None
    writes: tuple[Write, ...] = ()
    forgets: tuple[str, ...] = ()
    redacts: tuple[int, ...] = ()
    mentions: tuple[str, ...] = ()
    starts: tuple[str, int] | None = None
    forgotten: tuple[Forgotten, ...] = ()
    present: tuple[Record, ...] = ()
    messages: tuple[str, ...] = ()

    @property
    def replayed(self) -> bool:
        """Whether the operation had been committed before."""
        return self.request is None


@dataclass(slots=True, repr=False)
class Outcome:
    """What a store answers to an operation.

    Args:
        receipt: The receipt.
        replayed: Whether it had been committed before.
        records: The revisions written; on a replay those still present.
        forgotten: What a forget met.
        present: Records met but not written (an equal text that was stored already).
        scrubbed: Whether no file of the store holds the forgotten text any more.
    """

    receipt: Receipt
    replayed: bool
    records: tuple[Record, ...] = ()
    forgotten: tuple[Forgotten, ...] = ()
    present: tuple[Record, ...] = ()
    scrubbed: bool = False
