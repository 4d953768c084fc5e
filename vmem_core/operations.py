"""Every rule about writes: origins, duplicates, tombstones, revisions, receipts. Pure.

Each operation names what it reads and turns a snapshot into a plan, or raises one of our errors. Nothing here
does I/O, takes time or makes ids: clock, ids and salts are handed in. Stores hold no rule; they load what
``reads()`` names, call ``decide`` and apply the plan, all in one transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar, Final, final

from vmem_core import requests
from vmem_core.errors import (
    AssertedRecordError,
    EmbeddingMismatchError,
    InvalidRequestError,
    OperationConflictError,
    RecordConflictError,
    RecordNotFoundError,
    RevisionConflictError,
)
from vmem_core.plan import Forgotten, Head, Plan, Reads, Snapshot, StoredRequest, Vectors, Write
from vmem_core.records import Draft, Origin, Record, Scope, Source, check_metadata
from vmem_core.results import Change, Generation, Note, Receipt, Verb
from vmem_core.text import equality_form, text_digest, text_key
from vmem_core.values import builder

MOST_SOURCES: Final = 50
build_record: Final = builder(Record)
_build_source, _build_change, _build_receipt = builder(Source), builder(Change), builder(Receipt)


@final
class Unset:
    """An argument of ``revise`` that is not given: what it names stays as it is, where None clears it.

    ``UNSET`` is its one value.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return "UNSET"

    def __reduce__(self) -> str:
        return "UNSET"


UNSET: Final = Unset()
"""An argument of ``revise`` that is not given: what it names stays as it is (None clears)."""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Operation:
    """A write, before it is decided.

    Args:
        scope: Whose memory it changes.
        operation_id: Unique within the scope.
        salt: 16 random bytes for the digest of the request.
    """

    scope: Scope
    operation_id: str
    salt: bytes
    verb: ClassVar[Verb]

    def reads(self) -> Reads:
        """What the decision needs to know."""
        return Reads()

    def texts(self) -> Sequence[str]:
        """Texts that may be written, so that a store can make their search tokens before it locks anything."""
        return ()

    def request(self) -> str:
        """The canonical form of the request: equal for equal requests (see ``requests.py``)."""
        raise NotImplementedError

    def decide(self, snapshot: Snapshot) -> Plan:
        """The plan of this operation against a snapshot: a replay, or what is new.

        Raises:
            OperationConflictError: If the id was used for another request.
            VmemError: What the operation itself refuses.
        """
        stored = snapshot.stored
        if stored is None:
            return self.plan(snapshot)
        self._check_same_request(stored.receipt, stored.request)
        return self.replay(snapshot, stored.receipt)

    def _check_same_request(self, receipt: Receipt, request: StoredRequest) -> None:
        if receipt.redacted:
            # Its digest is gone. It replays for any write; but a forget must never pass for done when it was not.
            if self.verb in ("forget", "forget_scope") and receipt.kind != self.verb:
                raise OperationConflictError(self.operation_id)
        elif StoredRequest.of(self.request(), request.salt) != request:
            raise OperationConflictError(self.operation_id)

    def plan(self, snapshot: Snapshot) -> Plan:
        """What is to be applied when the operation is new."""
        raise NotImplementedError

    def replay(self, snapshot: Snapshot, receipt: Receipt) -> Plan:
        """What the caller is told when the operation was committed before."""
        heads = (snapshot.heads.get(record_id) for record_id in snapshot.mentions)
        return Plan(receipt, present=tuple(head.record for head in heads if head is not None and head.record))

    def next_revision(self, record: Record, snapshot: Snapshot, **changed: Any) -> Record:
        """The record's next revision, stamped."""
        return replace(
            record,
            revision=record.revision + 1,
            recorded_at=snapshot.now,
            operation_id=self.operation_id,
            scope_revision=snapshot.scope_revision + 1,
            **changed,
        )

    def new_record(self, draft: Draft, record_id: str, origin: Origin, snapshot: Snapshot) -> Record:
        """A draft's first revision, stamped."""
        return build_record(  # the draft has checked its fields
            record_id,
            1,
            self.scope,
            draft.text,
            draft.kind,
            origin,
            "active",
            draft.sources or (host_source(draft.text),),
            draft.links,
            draft.importance,
            check_metadata(draft.metadata) if draft.metadata else {},
            snapshot.now,
            snapshot.now,
            _expiry(snapshot.now, draft.ttl),
            self.operation_id,
            snapshot.scope_revision + 1,
        )

    def committed(self, snapshot: Snapshot, changes: Sequence[Change], notes: Sequence[Note] = (), **more: Any) -> Plan:
        """A plan with its receipt; ``more`` are the other fields of :class:`Plan`."""
        receipt = _build_receipt(
            self.operation_id,
            self.verb,
            self.scope,
            snapshot.scope_revision + 1,
            snapshot.now,
            tuple(changes),
            tuple(notes),
            False,
        )
        return Plan(receipt, StoredRequest.of(self.request(), self.salt), **more)


def check_generation(generation: Generation | None, model: str, dims: int) -> None:
    """Refuse vectors of another model or size than the active generation's.

    Raises:
        EmbeddingMismatchError: Never a zero score, and never two models in one space.
    """
    if generation is not None and (generation.model_id != model or generation.dims != dims):
        raise EmbeddingMismatchError(generation.model_id, generation.dims, model, dims)


def settle_vectors(vectors: Vectors | None, snapshot: Snapshot, writes: Sequence[Write]) -> dict[str, Any]:
    """Notes and a new generation that the vectors of some writes bring."""
    if vectors is None:
        return {"starts": None, "notes": ()}
    check_generation(snapshot.generation, vectors.model, vectors.dims)
    changed = [write for write in writes if write.text_changed]
    missing = sum(1 for write in changed if write.vector is None)
    starts = snapshot.generation is None and any(write.vector is not None for write in writes)
    return {
        "starts": (vectors.model, vectors.dims) if starts else None,
        "notes": (Note("not_embedded", missing),) if missing else (),
    }


def changes_of(writes: Sequence[Write]) -> list[Change]:
    """What a receipt says of some writes."""
    return [_build_change(write.record.id, write.record.revision, write.action) for write in writes]


def _expiry(now: datetime, ttl: timedelta | None) -> datetime | None:
    try:
        return None if ttl is None else now + ttl
    except OverflowError:
        raise InvalidRequestError("reaches beyond the year 9999; use None for no expiry", path="ttl") from None


def find_equal(text: str, snapshot: Snapshot, but: Collection[str] = ()) -> Record | None:
    """The first active record of an equal text that the snapshot has by the text's key, ``but`` those of some ids."""
    return next((record for record in equal_records(text, snapshot.equals) if record.id not in but), None)


def equal_records(text: str, by_key: Mapping[int, Sequence[Record]]) -> list[Record]:
    """Of the records with a text's key, those whose text is equal: the key alone proves nothing."""
    form = equality_form(text)
    return [record for record in by_key.get(text_key(text), ()) if equality_form(record.text) == form]


def host_source(text: str) -> Source:
    """The source of a text that the host gave without naming any."""
    return _build_source("host", text_digest(text), None, None, None, None, None, None)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Remember(Operation):
    """Add records, without looking at similar ones: ``remember`` with one draft, ``remember_many`` with many.

    Args:
        drafts: What to add.
        ids: An id for each draft: the host's own, or one made for it.
        origin: Of all of them.
        vectors: Of their texts, if the session embeds.
        skip_equal: Whether a text equal to an active record's is met instead of added.
        request_extra: Arguments of the verb, besides the drafts, that make a request another one.
    """

    drafts: tuple[Draft, ...]
    ids: tuple[str, ...]
    origin: Origin = "asserted"
    vectors: Vectors | None = None
    skip_equal: bool = False
    request_extra: Mapping[str, Any] = field(default_factory=dict)

    verb: ClassVar[Verb] = "remember"

    def reads(self) -> Reads:
        """Whether the ids are free, and equal texts where those are skipped."""
        equal = tuple(text_key(draft.text) for draft in self.drafts) if self.skip_equal else ()
        return Reads(record_ids=self.ids, equal_texts=equal)

    def texts(self) -> Sequence[str]:
        """The drafts' texts."""
        return [draft.text for draft in self.drafts]

    def with_vectors(self, vectors: Vectors | None) -> Remember:
        """The same operation with its texts embedded."""
        return replace(self, vectors=vectors)

    def request(self) -> str:
        """The drafts as they were given, in their order."""
        return requests.remember(self.verb, self.drafts, self.origin, self.request_extra)

    def plan(self, snapshot: Snapshot) -> Plan:
        """One new record for each draft, or a meeting with an equal one.

        Raises:
            RecordConflictError: If an id is held or was forgotten anywhere in the store.
        """
        taken = set(snapshot.heads)
        for record_id in self.ids:
            if record_id in taken:
                raise RecordConflictError(record_id)
            taken.add(record_id)
        writes, present = [], []
        for draft, record_id in zip(self.drafts, self.ids, strict=True):
            equal = find_equal(draft.text, snapshot) if self.skip_equal else None
            if equal is None:
                record = self.new_record(draft, record_id, self.origin, snapshot)
                writes.append(Write("create", record, True, self.vectors.of(draft.text) if self.vectors else None))
            else:
                present.append(equal)
        settled = settle_vectors(self.vectors, snapshot, writes)
        notes = (Note("already_stored", len(present)),) if present else ()
        mentions = tuple(dict.fromkeys(record.id for record in present))
        return self.committed(
            snapshot,
            changes_of(writes),
            (*notes, *settled["notes"]),
            writes=tuple(writes),
            mentions=mentions,
            present=tuple(present),
            starts=settled["starts"],
        )


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class RememberMany(Remember):
    """``remember_many``: like :class:`Remember` under its own verb, so that the two never pass for one request."""

    verb: ClassVar[Verb] = "remember_many"


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class _OnRecord(Operation):
    """An operation on one record that must be there and current.

    Args:
        record_id: The record.
        expected_revision: What the caller planned against; None: whatever is current.
        by_model: Whether a model asks. It may not touch what the host asserted.
    """

    record_id: str
    expected_revision: int | None = None
    by_model: bool = False

    def reads(self) -> Reads:
        """The record's head."""
        return Reads(record_ids=(self.record_id,))

    def current(self, snapshot: Snapshot) -> Record:
        """The record's current revision, checked.

        Raises:
            RecordNotFoundError: If the scope has no such record.
            RecordConflictError: If it was forgotten.
            AssertedRecordError: If a model asks and the host asserted it.
            RevisionConflictError: If it is not at the expected revision.
        """
        head = snapshot.heads.get(self.record_id)
        if head is None or not head.owned:
            raise RecordNotFoundError(self.record_id)
        if head.record is None:
            raise RecordConflictError(self.record_id)
        if self.by_model and head.record.origin == "asserted":
            raise AssertedRecordError(self.record_id)
        if self.expected_revision is not None and self.expected_revision != head.record.revision:
            raise RevisionConflictError(self.expected_revision, head.record.revision)
        return head.record


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Revise(_OnRecord):
    """Write a record's next revision. What is UNSET stays; None clears."""

    given: Mapping[str, Any]
    vectors: Vectors | None = None

    verb: ClassVar[Verb] = "revise"

    def texts(self) -> Sequence[str]:
        """The new text, if one is given."""
        return [self.given["text"]] if "text" in self.given else []

    def with_vectors(self, vectors: Vectors | None) -> Revise:
        """The same operation with its text embedded."""
        return replace(self, vectors=vectors)

    def request(self) -> str:
        """The arguments that were given."""
        return requests.revise(self.record_id, self.given, self.expected_revision, self.by_model)

    def plan(self, snapshot: Snapshot) -> Plan:
        """The next revision, active again if it was retracted.

        Raises:
            InvalidRequestError: If nothing is given and the record is active.
        """
        record = self.current(snapshot)
        if not self.given and record.status == "active":
            raise InvalidRequestError("nothing to change is given; name at least one field", path="revise")
        changed = changed_fields(record, self.given, snapshot.now, by_model=self.by_model)
        revised = self.next_revision(record, snapshot, status="active", **changed)
        vector = self.vectors.of(revised.text) if self.vectors else None
        writes = (Write("revise", revised, revised.text != record.text, vector),)
        settled = settle_vectors(self.vectors, snapshot, writes)
        return self.committed(snapshot, changes_of(writes), settled["notes"], writes=writes, starts=settled["starts"])


def changed_fields(record: Record, given: Mapping[str, Any], now: datetime, *, by_model: bool) -> dict[str, Any]:
    """What a revise changes of a record. What is not given stays.

    Args:
        record: Its current revision.
        given: The arguments that were given, with what None clears to filled in.
        now: The stamp of the commit, which a ttl counts from.
        by_model: Whether a model asks: then the origin stays and sources are added.
    """
    changed: dict[str, Any] = {
        name: given[name] for name in ("text", "kind", "importance", "metadata", "links") if name in given
    }
    if "ttl" in given:
        changed["expires_at"] = _expiry(now, given["ttl"])
    if by_model:
        changed["sources"] = merge_sources(record.sources, given.get("sources") or ())
        return changed
    # Origin and sources change only if text, sources or origin is given.
    if "sources" in given or "text" in given:
        changed["sources"] = given.get("sources") or (host_source(given.get("text", record.text)),)
    if "origin" in given or "text" in given:
        changed["origin"] = given.get("origin", "asserted")
    return changed


def merge_sources(old: Sequence[Source], new: Sequence[Source]) -> tuple[Source, ...]:
    """Old and new sources, one for each (kind, digest, message, call), the newest 50.

    >>> from vmem_core.text import text_digest
    >>> one = Source("user", text_digest("tea"))
    >>> len(merge_sources((one,), (one,)))
    1
    """
    kept: dict[tuple[str, str, str | None, str | None], Source] = {}
    for source in (*old, *new):
        kept.setdefault((source.kind, source.digest, source.message_id, source.tool_call_id), source)
    return tuple(kept.values())[-MOST_SOURCES:]


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Retract(_OnRecord):
    """Take a record out of recall; its history stays and a revise brings it back."""

    verb: ClassVar[Verb] = "retract"

    def request(self) -> str:
        """The record and the revision it was planned against."""
        return requests.on_record(
            self.verb, self.record_id, expected_revision=self.expected_revision, by_model=self.by_model
        )

    def plan(self, snapshot: Snapshot) -> Plan:
        """The next revision with the same content, retracted; of a retracted one a receipt only."""
        record = self.current(snapshot)
        if record.status == "retracted":
            return self.committed(snapshot, (), (Note("noop", 1),), mentions=(record.id,), present=(record,))
        writes = (Write("retract", self.next_revision(record, snapshot, status="retracted"), False),)
        return self.committed(snapshot, changes_of(writes), writes=writes)


def _meet(record_id: str, head: Head | None) -> Forgotten:
    if head is None or not head.owned:
        return Forgotten(record_id)
    if head.forgotten:
        return Forgotten(record_id, already=True, known=True)
    return Forgotten(record_id, tuple(w.revision for w in head.revisions if w.kept), known=True)


def _forget_changes(heads: Sequence[Head]) -> list[Change]:
    return [Change(head.record_id, head.revision, "forget") for head in heads]


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Forget(Operation):
    """Delete every revision, vector, token and source of a record; the id stays as a tombstone, for good."""

    record_id: str

    verb: ClassVar[Verb] = "forget"

    def reads(self) -> Reads:
        """The record's head with all its revisions, whose receipts are redacted."""
        return Reads(record_ids=(self.record_id,), revisions=True)

    def request(self) -> str:
        """The record."""
        return requests.on_record(self.verb, self.record_id)

    def plan(self, snapshot: Snapshot) -> Plan:
        """A receipt always; a deletion if the scope has the record. A foreign id is treated like an unknown one."""
        head = snapshot.heads.get(self.record_id)
        met = _meet(self.record_id, head)
        gone = [head] if head is not None and met.known and not met.already else []
        return self.committed(
            snapshot,
            _forget_changes(gone),
            forgets=tuple(head.record_id for head in gone),
            redacts=tuple(written.scope_revision for head in gone for written in head.revisions),
            forgotten=(met,),
        )

    def replay(self, snapshot: Snapshot, receipt: Receipt) -> Plan:
        """Nothing is deleted twice; whether there is a tombstone is told."""
        met = _meet(self.record_id, snapshot.heads.get(self.record_id))
        return Plan(receipt, forgotten=(Forgotten(self.record_id, already=met.already, known=met.already),))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ForgetScope(Operation):
    """Forget every record of a scope in one operation."""

    verb: ClassVar[Verb] = "forget_scope"

    def reads(self) -> Reads:
        """Every record of the scope."""
        return Reads(whole_scope=True, revisions=True)

    def request(self) -> str:
        """The verb: the scope is the operation's own."""
        return requests.canonical(self.verb, {})

    def plan(self, snapshot: Snapshot) -> Plan:
        """All that is left goes. What was forgotten before is met again, so that failed listeners get another call."""
        heads = [head for head in snapshot.heads.values() if not head.forgotten]
        return self.committed(
            snapshot,
            _forget_changes(heads),
            forgets=tuple(head.record_id for head in heads),
            redacts=tuple(sorted({written.scope_revision for head in heads for written in head.revisions})),
            forgotten=tuple(_meet(record_id, head) for record_id, head in snapshot.heads.items()),
        )

    def replay(self, snapshot: Snapshot, receipt: Receipt) -> Plan:
        """The ids that the operation forgot; whatever was written since stays."""
        gone = {change.record_id for change in receipt.changes}
        met = (_meet(record_id, head) for record_id, head in snapshot.heads.items() if record_id in gone)
        return Plan(receipt, forgotten=tuple(one for one in met if one.already))
