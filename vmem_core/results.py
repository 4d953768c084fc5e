"""What operations and reads answer: receipts, results, hits and pages.

Owns these values. Does not own records (``records.py``) or how they look (``display.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Literal

from vmem_core import display
from vmem_core.errors import InvalidRequestError
from vmem_core.records import Record, Scope, check_scope
from vmem_core.text import check_text
from vmem_core.values import (
    Value,
    check_choice,
    check_instant,
    check_integer,
    check_type,
    check_values,
    decode_instant,
    many,
    single,
)

Verb = Literal["remember", "remember_many", "extract", "revise", "retract", "forget", "forget_scope", "import"]
Action = Literal["create", "revise", "retract", "forget"]
Match = Literal["vector", "lexical", "hybrid", "recent"]
Redaction = Literal["complete", "failed", "none"]
VERBS: tuple[Verb, ...] = (
    "remember", "remember_many", "extract", "revise", "retract", "forget", "forget_scope", "import"
)  # fmt: skip
ACTIONS: tuple[Action, ...] = ("create", "revise", "retract", "forget")
MATCHES: tuple[Match, ...] = ("vector", "lexical", "hybrid", "recent")
REDACTIONS: tuple[Redaction, ...] = ("complete", "failed", "none")
SKIPS = ("revised", "not_embeddable", "failed")
NOTE_CODES = (
    "duplicate", "already_stored", "noop", "superseded_duplicate", "about_asserted", "delete_of_asserted_dropped",
    "unknown_handle", "invalid_entry", "over_limit", "unparsed", "refused", "nothing_readable", "untrusted",
    "already_processed", "block_skipped", "truncated", "not_embedded",
)  # fmt: skip

FINDING_CODES = (
    "change_ahead", "change_lost", "change_mismatch", "change_unknown", "file_damaged", "forget_undone",
    "forgotten_index", "forgotten_mention", "forgotten_text", "forgotten_vector", "generation_states",
    "generation_tables", "head_changed", "head_entry", "head_erased", "head_missing", "index_columns",
    "mention_unknown", "orphan_rows", "receipt_digest", "receipt_missing", "receipt_not_redacted",
    "receipt_unreadable", "record_beyond", "record_lost", "revision_above_head", "revision_gap", "revision_order",
    "revision_unlisted", "revision_unreadable", "scope_behind", "scope_unreadable", "stamp_behind", "stamps_fall",
    "tokenizer_old", "vector_length", "vector_past", "vector_revision", "vector_size", "vector_text",
)  # fmt: skip


def _check_revisions(revisions: object) -> tuple[int, ...]:
    checked = check_values(revisions, int, "revisions")
    return tuple(check_integer(one, f"revisions[{index}]", least=1) for index, one in enumerate(checked))


@dataclass(frozen=True, slots=True)
class Change(Value):
    """What an operation did to one record: its id, the revision written (or last held), the action."""

    record_id: str
    revision: int
    action: Action

    def __post_init__(self) -> None:
        check_text(self.record_id, "change.record_id")
        check_integer(self.revision, "change.revision", least=1)
        check_choice(self.action, ACTIONS, "change.action")


@dataclass(frozen=True, slots=True)
class Note(Value):
    """A machine-readable remark of a receipt: a code and how often it applied. Never text."""

    code: str
    count: int

    def __post_init__(self) -> None:
        check_choice(self.code, NOTE_CODES, "note.code")
        check_integer(self.count, "note.count", least=1)


@dataclass(frozen=True, slots=True)
class Receipt(Value):
    """The durable proof of an operation; it holds no text.

    Args:
        operation_id: Unique within the scope.
        kind: The verb.
        scope: Whose memory it is.
        scope_revision: The scope's revision that this operation made.
        committed_at: UTC, by the store's clock.
        changes: Created and revised records in the order given, then retracted ones.
        notes: Remarks.
        redacted: Whether a record that it wrote was forgotten since.
    """

    operation_id: str
    kind: Verb
    scope: Scope
    scope_revision: int
    committed_at: datetime
    changes: tuple[Change, ...] = ()
    notes: tuple[Note, ...] = ()
    redacted: bool = False

    _decoders: ClassVar[Any] = {
        "scope": single(Scope),
        "committed_at": decode_instant,
        "changes": many(Change),
        "notes": many(Note),
    }

    def __post_init__(self) -> None:
        check_text(self.operation_id, "operation_id")
        check_choice(self.kind, VERBS, "kind")
        check_scope(self.scope)
        check_integer(self.scope_revision, "scope_revision", least=1)
        object.__setattr__(self, "committed_at", check_instant(self.committed_at, "committed_at"))
        check_type(self.redacted, bool, "redacted")
        object.__setattr__(self, "changes", check_values(self.changes, Change, "changes"))
        object.__setattr__(self, "notes", check_values(self.notes, Note, "notes"))

    def _repr_html_(self) -> str:
        return display.receipt(self.to_json())


@dataclass(frozen=True, slots=True)
class WriteResult(Value):
    """What a write answers.

    Args:
        receipt: Its proof.
        replayed: Whether the operation had been committed before; nothing was applied now.
        records: The revisions written, created and revised first in the order given, then retracted; on a replay
            those still present.
        conflict_retries: How often a plan was made again because another writer came first.
        present: Records that were met but not written: one of equal text, or one that was retracted already.
    """

    receipt: Receipt
    replayed: bool = False
    records: tuple[Record, ...] = ()
    conflict_retries: int = 0
    present: tuple[Record, ...] = ()

    _decoders: ClassVar[Any] = {"receipt": single(Receipt), "records": many(Record), "present": many(Record)}

    def __post_init__(self) -> None:
        check_type(self.receipt, Receipt, "receipt")
        check_type(self.replayed, bool, "replayed")
        object.__setattr__(self, "records", check_values(self.records, Record, "records"))
        object.__setattr__(self, "present", check_values(self.present, Record, "present"))
        check_integer(self.conflict_retries, "conflict_retries", least=0)

    def _repr_html_(self) -> str:
        return display.written(self.to_json())


@dataclass(frozen=True, slots=True)
class ForgetResult(Value):
    """What ``forget`` answers.

    Args:
        receipt: Its proof.
        replayed: Whether this operation had been committed before.
        revisions: The revisions deleted, ascending; empty when there was nothing to delete any more.
        already_forgotten: Whether the record was forgotten before.
        redaction: What the listeners did: ``complete``, ``failed`` (call forget again), or ``none``.
        scrubbed: Whether the text is gone from the store's files, as far as ``forget`` reaches without ``scrub``.
    """

    receipt: Receipt
    replayed: bool = False
    revisions: tuple[int, ...] = ()
    already_forgotten: bool = False
    redaction: Redaction = "none"
    scrubbed: bool = False

    _decoders: ClassVar[Any] = {"receipt": single(Receipt)}

    def __post_init__(self) -> None:
        check_type(self.receipt, Receipt, "receipt")
        for name in ("replayed", "already_forgotten", "scrubbed"):
            check_type(getattr(self, name), bool, name)
        object.__setattr__(self, "revisions", _check_revisions(self.revisions))
        check_choice(self.redaction, REDACTIONS, "redaction")

    def _repr_html_(self) -> str:
        return display.forgotten(self.to_json())


@dataclass(frozen=True, slots=True)
class ForgetScopeResult(Value):
    """What ``forget_scope`` answers.

    Args:
        receipt: Its proof.
        record_ids: The records it forgot.
        redaction: What the listeners did: ``complete``, ``failed`` (call it again), or ``none``.
        replayed: Whether this operation had been committed before.
        scrubbed: Whether the texts are gone from the store's files, as far as a forget reaches without ``scrub``.
    """

    receipt: Receipt
    record_ids: tuple[str, ...] = ()
    redaction: Redaction = "none"
    replayed: bool = False
    scrubbed: bool = False

    _decoders: ClassVar[Any] = {"receipt": single(Receipt)}

    def __post_init__(self) -> None:
        check_type(self.receipt, Receipt, "receipt")
        for name in ("replayed", "scrubbed"):
            check_type(getattr(self, name), bool, name)
        ids = check_values(self.record_ids, str, "record_ids")
        object.__setattr__(self, "record_ids", tuple(check_text(one, f"record_ids[{n}]") for n, one in enumerate(ids)))
        check_choice(self.redaction, REDACTIONS, "redaction")

    def _repr_html_(self) -> str:
        return display.scope_forgotten(self.to_json())


@dataclass(frozen=True, slots=True)
class ForgetEvent(Value):
    """What an ``on_forget`` listener gets, after the commit: ids and numbers, no text.

    Args:
        scope: Whose memory it was.
        record_id: The record.
        revisions: The revisions deleted, ascending; empty if it was forgotten before: take it for all of them then.
        operation_id: The operation that forgot it.
        already_forgotten: Whether it was forgotten before.
    """

    scope: Scope
    record_id: str
    revisions: tuple[int, ...]
    operation_id: str
    already_forgotten: bool = False

    _decoders: ClassVar[Any] = {"scope": single(Scope)}

    def __post_init__(self) -> None:
        check_scope(self.scope)
        check_text(self.record_id, "record_id")
        check_text(self.operation_id, "operation_id")
        check_type(self.already_forgotten, bool, "already_forgotten")
        object.__setattr__(self, "revisions", _check_revisions(self.revisions))


@dataclass(frozen=True, slots=True)
class Hit(Value):
    """A record that a recall found.

    Args:
        record: The revision found.
        score: What the hits of one recall are ordered by, greater is better: a sum over both lists, of ranks or of
            scores (``fusion``). 0.0 for ``recent``.
        match: Found by ``vector``, ``lexical``, both (``hybrid``), or as one of the ``recent``.
        vector_rank: Its place in the vector list, from 1, or None.
        lexical_rank: Its place in the lexical list, from 1, or None.
    """

    record: Record
    score: float
    match: Match
    vector_rank: int | None = None
    lexical_rank: int | None = None

    _decoders: ClassVar[Any] = {"record": single(Record)}

    def __post_init__(self) -> None:
        check_type(self.record, Record, "record")
        if not math.isfinite(check_type(self.score, float, "score")):
            raise InvalidRequestError("must be a finite number", path="score")
        check_choice(self.match, MATCHES, "match")
        for name in ("vector_rank", "lexical_rank"):
            if getattr(self, name) is not None:
                check_integer(getattr(self, name), name, least=1)

    def _repr_html_(self) -> str:
        return display.hits([self.to_json()])


class Hits(list[Hit]):
    """The list that ``recall`` returns: a plain list that shows itself as a table in a notebook."""

    def __init__(self, hits: Iterable[Hit] = ()) -> None:
        super().__init__(hits)

    def _repr_html_(self) -> str:
        return display.hits([hit.to_json() for hit in self])


class History(list[Record]):
    """The list that ``history`` returns: a plain list that shows itself as a line in time in a notebook."""

    def _repr_html_(self) -> str:
        return display.timeline([record.to_json() for record in self])


@dataclass(frozen=True, slots=True)
class Page(Value):
    """One page of ``list``: its records, newest first, and the cursor of the next page (None: the last one)."""

    records: tuple[Record, ...] = ()
    cursor: str | None = None

    _decoders: ClassVar[Any] = {"records": many(Record)}

    def __post_init__(self) -> None:
        object.__setattr__(self, "records", check_values(self.records, Record, "records"))
        if self.cursor is not None:
            check_text(self.cursor, "cursor")

    def _repr_html_(self) -> str:
        return display.page([record.to_json() for record in self.records], self.cursor is not None)


@dataclass(frozen=True, slots=True)
class ImportResult(Value):
    """What an import answers: ``scanned`` is ``imported`` and ``skipped`` together.

    Args:
        scanned: How many records were read.
        imported: How many are new in the store; in a dry run, how many would be.
        skipped: How many were left out.
        reasons: How many were left out for each reason.

    >>> ImportResult(3, 1, 2, {"already_imported": 2}).reasons["already_imported"]
    2
    """

    scanned: int = 0
    imported: int = 0
    skipped: int = 0
    reasons: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("scanned", "imported", "skipped"):
            check_integer(getattr(self, name), name, least=0)
        reasons = check_type(self.reasons, dict, "reasons")
        for reason, count in reasons.items():
            check_integer(count, f"reasons.{check_text(reason, 'reasons')}", least=1)
        if self.skipped != sum(reasons.values()) or self.scanned != self.imported + self.skipped:
            raise InvalidRequestError(
                "must be imported and skipped together, and each skip has a reason", path="scanned"
            )
        object.__setattr__(self, "reasons", dict(sorted(reasons.items())))

    __hash__ = None  # type: ignore[assignment]

    def _repr_html_(self) -> str:
        return display.imported(self.to_json())


@dataclass(frozen=True, slots=True)
class Generation(Value):
    """A set of vectors of one model and size.

    Args:
        number: From 1, in the order of the store's embedding models.
        model_id: The model.
        dims: The size of its vectors.
        state: ``active``: searched; ``pending``: being filled; ``retired``: given up or replaced.
    """

    number: int
    model_id: str
    dims: int
    state: Literal["active", "pending", "retired"]

    def __post_init__(self) -> None:
        check_integer(self.number, "generation.number", least=1)
        check_text(self.model_id, "generation.model_id")
        check_integer(self.dims, "generation.dims", least=1)
        check_choice(self.state, ("active", "pending", "retired"), "generation.state")


@dataclass(frozen=True, slots=True)
class Finding(Value):
    """Something that does not agree in a store: what ``diagnose`` answers. It holds ids and numbers, never text.

    Args:
        code: What kind of fault it is; the page on the doctor has an entry for each.
        scope: Whose memory it concerns; None: the whole store's.
        record_id: The record, if it is one record's.
        operation_id: The operation, if it is one receipt's.
        detail: The fault in words, for people.
    """

    code: str
    scope: Scope | None = None
    record_id: str | None = None
    operation_id: str | None = None
    detail: str = ""

    _decoders: ClassVar[dict[str, Any]] = {"scope": single(Scope)}

    def __post_init__(self) -> None:
        check_choice(self.code, FINDING_CODES, "finding.code")
        if self.scope is not None:
            check_scope(self.scope, "finding.scope")
        check_type(self.detail, str, "finding.detail")

    def _repr_html_(self) -> str:
        return display.findings([self.to_json()])


class Findings(list[Finding]):
    """The list that ``diagnose`` returns: a plain list that shows itself as a table in a notebook."""

    def _repr_html_(self) -> str:
        return display.findings([finding.to_json() for finding in self])


@dataclass(frozen=True, slots=True)
class ReembedResult(Value):
    """What ``reembed`` answers.

    Args:
        generation: The number of the generation that was filled.
        embedded: How many vectors this call stored.
        skipped: The sum of ``reasons``: how often a record was met and no vector was stored.
        activated: Whether the store searches with that generation now, and no record lacks its vector or its mark.
            False: call again to go on.
        reasons: What ``skipped`` is made of. ``revised``: the record was revised or forgotten while its text was
            embedded, so that the vector was dropped; the next pass met it again. ``not_embeddable``: the model gave a
            vector that is zero, NaN or infinite; the record is marked and found by its words. ``failed``: the
            embedder raised for this text alone; in the last pass, so these records still lack their vector.
        failed: The ids of the records that failed, at most 100 of them.

    >>> ReembedResult(2, 10, 1, True, {"revised": 1}).skipped
    1
    """

    generation: int
    embedded: int
    skipped: int
    activated: bool
    reasons: Mapping[str, int] = field(default_factory=dict)
    failed: tuple[str, ...] = ()

    __hash__ = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        check_integer(self.generation, "generation", least=1)
        check_integer(self.embedded, "embedded", least=0)
        check_integer(self.skipped, "skipped", least=0)
        check_type(self.activated, bool, "activated")
        check_type(self.reasons, dict, "reasons")
        reasons = {check_choice(code, SKIPS, "reasons"): count for code, count in self.reasons.items()}
        for code, count in reasons.items():
            check_integer(count, f"reasons.{code}", least=1)
        if sum(reasons.values()) != self.skipped:
            raise InvalidRequestError("must be the sum of reasons", path="skipped")
        object.__setattr__(self, "reasons", reasons)
        ids = check_values(self.failed, str, "failed")
        object.__setattr__(self, "failed", tuple(check_text(one, f"failed[{n}]") for n, one in enumerate(ids)))

    def _repr_html_(self) -> str:
        return display.reembedded(self.to_json())
