"""The operation that applies planned edits: what reconciliation and extraction decided, if it still holds.

Owns the edits and the last look at them inside the transaction: that nothing moved since they were planned, that no
message is read twice, that no equal text is stored twice, that a model touches nothing the host asserted. Does not
own how edits are planned (``reconcile.py``). Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from vmem_core.errors import AssertedRecordError, RecordConflictError, RevisionConflictError
from vmem_core.operations import Operation, changed_fields, changes_of, find_equal, settle_vectors
from vmem_core.plan import Plan, Reads, Snapshot, Vectors, Write
from vmem_core.records import Draft, Origin, Record
from vmem_core.results import NOTE_CODES, Note, Verb
from vmem_core.text import equality_form, text_key


@dataclass(frozen=True, slots=True)
class Create:
    """A new record.

    Args:
        record_id: Its id.
        draft: What it holds.
        message_ids: The messages it was read from: once all of them were read before, it is dropped.
    """

    record_id: str
    draft: Draft
    message_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Amend:
    """A record's next revision; ``given`` as in ``revise``."""

    record_id: str
    given: Mapping[str, Any]
    message_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Withdraw:
    """A record to be retracted."""

    record_id: str
    message_ids: tuple[str, ...] = ()


Edit = Create | Amend | Withdraw


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ApplyEdits(Operation):
    """Apply edits that were planned against one revision of the scope.

    Args:
        canonical_request: The canonical form of the verb's arguments.
        edits: What is to be done.
        origin: Of what is created: ``inferred`` may touch nothing that is asserted.
        notes: What the planning noted.
        expected_scope_revision: What was planned against; None: the edits only add, and conflict with nothing.
        message_ids: Messages that were read, to be read never again.
        met: Ids of records whose equal text made a new record needless.
        vectors: Of the texts.
    """

    canonical_request: str
    edits: tuple[Edit, ...] = ()
    origin: Origin = "inferred"
    notes: Mapping[str, int] = field(default_factory=dict)
    expected_scope_revision: int | None = None
    message_ids: tuple[str, ...] = ()
    met: tuple[str, ...] = ()
    vectors: Vectors | None = None
    skip_equal: bool = False

    def reads(self) -> Reads:
        """The records to be touched, whether new ids are free, equal texts, and which messages were read."""
        keys = {text_key(edit.draft.text) for edit in self.edits if isinstance(edit, Create)}
        return Reads(
            record_ids=tuple(dict.fromkeys((*(edit.record_id for edit in self.edits), *self.met))),
            equal_texts=tuple(sorted(keys)) if self.skip_equal else (),
            message_ids=self.message_ids,
        )

    def texts(self) -> Sequence[str]:
        """The texts that may be written."""
        texts = []
        for edit in self.edits:
            if isinstance(edit, Create):
                texts.append(edit.draft.text)
            elif isinstance(edit, Amend) and "text" in edit.given:
                texts.append(edit.given["text"])
        return texts

    def with_vectors(self, vectors: Vectors | None) -> ApplyEdits:
        """The same operation with its texts embedded."""
        return replace(self, vectors=vectors)

    def request(self) -> str:
        """The canonical form of the verb's arguments."""
        return self.canonical_request

    def plan(self, snapshot: Snapshot) -> Plan:
        """The edits that still hold, created and revised first, then retracted.

        Raises:
            RevisionConflictError: If the scope moved since the edits were planned.
            RecordConflictError: If the id of a new record is not available.
            AssertedRecordError: If a model's edit would touch what the host asserted.
        """
        expected = self.expected_scope_revision
        if expected is not None and expected != snapshot.scope_revision:
            raise RevisionConflictError(expected, snapshot.scope_revision)
        notes = Counter(self.notes)
        met = [head.record for head in map(snapshot.heads.get, self.met) if head and head.owned and head.record]
        edits = self._current(snapshot, notes)
        leaving = {edit.record_id for edit in edits if not isinstance(edit, Create)}
        planned = (self._write(edit, snapshot, leaving, met, notes) for edit in edits)
        writes = [write for write in planned if write is not None]
        created = Counter(write.record.id for write in writes if write.action == "create")
        for record_id, times in created.items():
            if times > 1:
                raise RecordConflictError(record_id)
        writes.sort(key=lambda write: write.action == "retract")
        settled = settle_vectors(self.vectors, snapshot, writes)
        codes = [Note(code, notes[code]) for code in NOTE_CODES if notes[code] > 0]
        present = tuple({record.id: record for record in met}.values())
        return self.committed(
            snapshot,
            changes_of(writes),
            (*codes, *settled["notes"]),
            writes=tuple(writes),
            starts=settled["starts"],
            mentions=tuple(record.id for record in present),
            present=present,
            messages=tuple(one for one in self.message_ids if one not in snapshot.processed),
        )

    def _current(self, snapshot: Snapshot, notes: Counter[str]) -> list[Edit]:
        """Edits but those whose every message another writer has read meanwhile."""
        kept = [e for e in self.edits if not e.message_ids or not snapshot.processed.issuperset(e.message_ids)]
        if dropped := len(self.edits) - len(kept):
            notes["already_processed"] += dropped
        return kept

    def _write(
        self, edit: Edit, snapshot: Snapshot, leaving: Collection[str], met: list[Record], notes: Counter[str]
    ) -> Write | None:
        if isinstance(edit, Create):
            return self._create(edit, snapshot, leaving, met, notes)
        record = self._touchable(edit.record_id, snapshot)
        if isinstance(edit, Withdraw):
            return Write("retract", self.next_revision(record, snapshot, status="retracted"), False)
        changed = changed_fields(record, edit.given, snapshot.now, by_model=self.origin == "inferred")
        revised = self.next_revision(record, snapshot, **changed)
        vector = self.vectors.of(revised.text) if self.vectors else None
        return Write("revise", revised, revised.text != record.text, vector)

    def _create(
        self, edit: Create, snapshot: Snapshot, leaving: Collection[str], met: list[Record], notes: Counter[str]
    ) -> Write | None:
        if edit.record_id in snapshot.heads:
            raise RecordConflictError(edit.record_id)
        # A record that this very operation changes or retracts cannot stand for the new one.
        equal = find_equal(edit.draft.text, snapshot, leaving) if self.skip_equal else None
        if equal is not None:
            notes["duplicate"] += 1
            met.append(equal)
            return None
        record = self.new_record(edit.draft, edit.record_id, self.origin, snapshot)
        return Write("create", record, True, self.vectors.of(record.text) if self.vectors else None)

    def _touchable(self, record_id: str, snapshot: Snapshot) -> Record:
        """A record as planned against; the scope has not moved, so it is there and current."""
        record = snapshot.heads[record_id].record
        if record is None:
            raise RecordConflictError(record_id)
        if self.origin == "inferred" and record.origin == "asserted":
            raise AssertedRecordError(record_id)
        return record


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ReconciledRemember(ApplyEdits):
    """``remember``, after it met similar records."""

    verb: ClassVar[Verb] = "remember"


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Extract(ApplyEdits):
    """``extract``: what a conversation taught."""

    verb: ClassVar[Verb] = "extract"


def same_text(a: str, b: str) -> bool:
    """Whether two texts are equal: trimmed, NFC, case-folded."""
    return equality_form(a) == equality_form(b)
