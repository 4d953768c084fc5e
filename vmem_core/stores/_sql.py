"""What SQL stores share: the tables, the statements, and how rows and values become each other.

Owns the schema and its version, the codes in its columns and the bodies of rows. Does not own connections,
transactions or errors (``sqlite.py``), or any rule (``operations.py``).

Numbers are composed: ``scope_id << 32 | n`` clusters the rows of a scope, so that its index is built by one ordered
scan. A record keeps one row in ``vmem_records`` for its whole life: head, tombstone and entry of the change feed.
All text lies in ``vmem_revisions``, which only ever grows at its end and is forgotten by overwriting in place
(see ``docs/decisions/0005-text-is-overwritten-in-place.md``).
"""

from __future__ import annotations

import json
import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from vmem_core.operations import build_record
from vmem_core.plan import StoredReceipt, StoredRequest
from vmem_core.records import KINDS, ORIGINS, Link, Record, Scope, Source
from vmem_core.results import Change, Note, Receipt
from vmem_core.text import json_encoder
from vmem_core.values import builder, from_micros, to_micros

SCHEMA_VERSION: Final = 1
ERASED: Final = b"\x00" * 48
ACTIVE, RETRACTED, FORGOTTEN = 1, 0, -1
UNFINISHED: Final = -2  # only inside the transaction that restores an export
_LOWEST = (1 << 32) - 1
_build_source, _build_link = builder(Source), builder(Link)

TABLES: Final = (
    "create table vmem_schema(version integer not null)",
    "create table vmem_store(name text primary key, value text not null) without rowid",
    """create table vmem_scopes(scope_id integer primary key, scope_key text not null unique,
       revision integer not null, last_stamp integer not null, records integer not null)""",
    # changed: scope_id << 32 | scope revision of the last change: the feed of the index.
    """create table vmem_records(number integer primary key, record_id text not null unique, entry integer not null,
       revision integer not null, changed integer not null, state integer not null, kind integer not null,
       origin integer not null, expires_at integer, text_key integer, tokens blob not null, facets blob not null)""",
    "create index vmem_records_feed on vmem_records(changed)",
    "create index vmem_records_text on vmem_records(text_key) where text_key is not null",
    # entry: global append order. Text is never deleted, only overwritten: see the module's docstring.
    """create table vmem_revisions(entry integer primary key, number integer not null, revision integer not null,
       scope_revision integer not null, recorded_at integer not null, body text not null)""",
    "create unique index vmem_revisions_number on vmem_revisions(number, revision)",
    """create table vmem_generations(generation integer primary key, model_id text not null, dims integer not null,
       state text not null, epoch integer not null)""",
    "create unique index vmem_generations_active on vmem_generations(state) where state = 'active'",
    # Revisions that a generation's model has no vector for: they are not asked for again.
    """create table vmem_unembeddable(generation integer not null, number integer not null, revision integer not null,
       primary key(generation, number)) without rowid""",
    """create table vmem_receipts(number integer primary key, scope_id integer not null, operation_id text not null,
       committed_at integer not null, redacted integer not null, request blob not null, body text not null)""",
    "create unique index vmem_receipts_operation on vmem_receipts(scope_id, operation_id)",
    # A receipt that met a record without writing it: its request may hold the same text, so a forget redacts it too.
    """create table vmem_mentions(receipt integer not null, number integer not null,
       primary key(receipt, number)) without rowid""",
    "create index vmem_mentions_number on vmem_mentions(number)",
    # Ids of messages that an extraction has read: kept for good, so that nothing is read twice.
    """create table vmem_messages(scope_id integer not null, message_id text not null,
       primary key(scope_id, message_id)) without rowid""",
)

LOAD: Final = """select s.scope_id, s.revision, s.last_stamp, s.records, g.generation, g.model_id, g.dims, g.epoch,
       r.number, r.committed_at, r.redacted, r.request, r.body, null
  from (select 1) as one left join vmem_scopes s on s.scope_key = ?
  left join vmem_generations g on g.state = 'active'
  left join vmem_receipts r on r.scope_id = s.scope_id and r.operation_id = ?"""
_HEAD_COLUMNS: Final = "r.number, r.record_id, r.revision, r.state, v.scope_revision, v.recorded_at, v.body"
HEAD_BY_ID: Final = f"""select {_HEAD_COLUMNS} from vmem_records r left join vmem_revisions v on v.entry = r.entry
  where r.record_id = ?"""
HEADS_BY_ID: Final = f"""select {_HEAD_COLUMNS} from vmem_records r left join vmem_revisions v on v.entry = r.entry
  where r.record_id in (select value from json_each(?))"""
HEADS_BY_NUMBER: Final = f"""select {_HEAD_COLUMNS} from vmem_records r left join vmem_revisions v on v.entry = r.entry
  where r.number in (select value from json_each(?))"""
HEADS_OF_SCOPE: Final = """select number, record_id, revision, state, null, null, null from vmem_records
  where number between ? and ? order by number"""
EQUAL_TEXTS: Final = f"""select {_HEAD_COLUMNS} from vmem_records r join vmem_revisions v on v.entry = r.entry
  where r.text_key = ? and r.number between ? and ? and r.state = 1 and (r.expires_at is null or r.expires_at > ?)
  order by r.number"""
REVISIONS_OF: Final = """select number, revision, scope_revision, recorded_at, body from vmem_revisions
  where number = ? order by revision"""
WRITTEN_OF_SCOPE: Final = """select number, revision, scope_revision, substr(body, 1, 1) = '{' from vmem_revisions
  where number between ? and ? order by number, revision"""
RECEIPTS_BY_OPERATION: Final = """select operation_id, number, committed_at, redacted, request, body
  from vmem_receipts where scope_id = ? and operation_id in (select value from json_each(?))"""
HOLDERS: Final = """select record_id, number, state from vmem_records
  where record_id in (select value from json_each(?))"""
ONE_REVISION: Final = """select v.number, r.record_id, v.revision, v.scope_revision, v.recorded_at, v.body
  from vmem_records r join vmem_revisions v on v.number = r.number and v.revision = ?
  where r.record_id = ? and r.state >= 0"""

INSERT_SCOPE: Final = "insert into vmem_scopes(scope_key, revision, last_stamp, records) values(?, 0, 0, 0)"
UPDATE_SCOPE: Final = "update vmem_scopes set revision = ?, last_stamp = ?, records = ? where scope_id = ?"
INSERT_REVISION: Final = """insert into vmem_revisions(number, revision, scope_revision, recorded_at, body)
  values(?, ?, ?, ?, ?)"""
NEXT_ENTRY: Final = "select coalesce(max(entry), 0) + 1 from vmem_revisions"
INSERT_NUMBERED: Final = """insert into vmem_revisions(entry, number, revision, scope_revision, recorded_at, body)
  values(?, ?, ?, ?, ?, ?)"""
INSERT_RECORD: Final = """insert into vmem_records(number, record_id, entry, revision, changed, state, kind, origin,
  expires_at, text_key, tokens, facets) values(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
# Its entry is known; on PostgreSQL the one above takes the entry that was just numbered.
INSERT_NUMBERED_RECORD: Final = """insert into vmem_records(number, record_id, entry, revision, changed, state, kind,
  origin, expires_at, text_key, tokens, facets) values(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
UPDATE_RECORD: Final = """update vmem_records set entry = ?, revision = ?, changed = ?, state = ?, kind = ?, origin = ?,
  expires_at = ?, text_key = coalesce(?, text_key), tokens = coalesce(?, tokens), facets = ? where number = ?"""
INSERT_RECEIPT: Final = "insert into vmem_receipts values(?, ?, ?, ?, 0, ?, ?)"
INSERT_MENTION: Final = "insert into vmem_mentions(receipt, number) values(?, ?) on conflict do nothing"
INSERT_MESSAGE: Final = "insert into vmem_messages(scope_id, message_id) values(?, ?) on conflict do nothing"
PROCESSED: Final = """select message_id from vmem_messages
  where scope_id = ? and message_id in (select value from json_each(?))"""
MENTIONED: Final = "select number from vmem_mentions where receipt = ? order by number"
MENTIONS_OF: Final = "select receipt from vmem_mentions where number = ?"
DELETE_MENTIONS: Final = "delete from vmem_mentions where number = ?"
# Zeros of the same length take the place of the text, byte for byte: the row is rewritten where it lies.
OVERWRITE_TEXT: Final = """update vmem_revisions set body = cast(zeroblob(length(cast(body as blob))) as text)
  where number = ?"""
EMPTY_RECORD: Final = """update vmem_records set changed = ?, state = -1, entry = 0, revision = 0, kind = 0, origin = 0,
  expires_at = null, text_key = null, tokens = x'', facets = x'' where number = ?"""
REDACT_RECEIPT: Final = "update vmem_receipts set redacted = 1, request = zeroblob(length(request)) where number = ?"
INSERT_GENERATION: Final = "insert into vmem_generations values(?, ?, ?, 'active', 0)"
NEXT_GENERATION: Final = "select coalesce(max(generation), 0) + 1 from vmem_generations"
ACTIVE_GENERATION: Final = "select generation, model_id, dims from vmem_generations where state = 'active'"

CURRENT_BODIES: Final = """select r.number, v.body from vmem_records r join vmem_revisions v on v.entry = r.entry
  where r.state >= 0"""
SET_TOKENS: Final = "update vmem_records set tokens = ? where number = ?"
NEXT_EPOCH: Final = "update vmem_generations set epoch = epoch + 1"  # indexes in other processes are built anew
SET_SETTING: Final = "update vmem_store set value = ? where name = ?"

# A whole scope, page by page: the first column is where the next page begins.
DUMP_COUNTS: Final = (
    "select count(*) from vmem_records where number between ? and ?",
    """select count(*) from vmem_revisions v join vmem_records r on r.number = v.number
       where v.number between ? and ? and r.state >= 0""",
    "select count(*) from vmem_receipts where number between ? and ?",
)
COUNT_MESSAGES: Final = "select count(*) from vmem_messages where scope_id = ?"
DUMP_RECORDS: Final = """select number, record_id, state, changed from vmem_records
  where number between ? and ? and number > ? order by number limit ?"""
DUMP_REVISIONS: Final = """select v.entry, v.number, r.record_id, v.revision, v.scope_revision, v.recorded_at, r.entry,
  v.body from vmem_revisions v join vmem_records r on r.number = v.number
  where v.number between ? and ? and v.entry > ? and r.state >= 0 order by v.entry limit ?"""
DUMP_RECEIPTS: Final = """select number, operation_id, committed_at, redacted, request, body from vmem_receipts
  where number between ? and ? and number > ? order by number limit ?"""
DUMP_MESSAGES: Final = """select message_id from vmem_messages where scope_id = ? and message_id > ?
  order by message_id limit ?"""
RESTORE_RECEIPT: Final = """insert into vmem_receipts(number, scope_id, operation_id, committed_at, redacted, request,
  body) values(?, ?, ?, ?, ?, ?, ?)"""
FINISH_RECORD: Final = """update vmem_records set entry = ?, revision = ?, changed = ?, state = ?, kind = ?, origin = ?,
  expires_at = ?, text_key = ?, tokens = ?, facets = ? where number = ? and record_id = ? and state = -2"""
COUNT_UNFINISHED: Final = "select count(*) from vmem_records where number between ? and ? and state = -2"

# Heads of forgotten records keep their row as the tombstone; their text rows are husks until VACUUM drops them.
DROP_HUSKS: Final = "delete from vmem_revisions where number in (select number from vmem_records where state = -1)"

# A scope is locked by its row: one in which all was refused has a row and no revision.
SCOPES: Final = "select scope_key from vmem_scopes where revision > 0"
# Only what is older than the cutoff is looked at; whether it goes is not decided here.
PAST_REVISIONS: Final = """select v.entry, v.number, v.revision, v.recorded_at, r.revision, r.state, r.expires_at
  from vmem_revisions v join vmem_records r on r.number = v.number
  where v.number between ? and ? and (v.number, v.revision) > (?, ?) and v.recorded_at < ? and r.state >= 0
    and v.entry <> r.entry and substr(v.body, 1, 1) = '{'
  order by v.number, v.revision limit ?"""
OVERWRITE_REVISION: Final = """update vmem_revisions set body = cast(zeroblob(length(cast(body as blob))) as text)
  where entry = ?"""
COUNT_OLD_RECEIPTS: Final = "select count(*) from vmem_receipts where number between ? and ? and committed_at < ?"
DELETE_OLD_MENTIONS: Final = """delete from vmem_mentions where receipt in
  (select number from vmem_receipts where number between ? and ? and committed_at < ?)"""
DELETE_OLD_RECEIPTS: Final = "delete from vmem_receipts where number between ? and ? and committed_at < ?"
COUNT: Final = """select count(*) from vmem_records where number between ? and ? and state = 1
  and (expires_at is null or expires_at > ?)"""
LIST: Final = f"""select {_HEAD_COLUMNS} from vmem_records r join vmem_revisions v on v.entry = r.entry
  where r.number between ? and ? and r.state >= 0 and (r.expires_at is null or r.expires_at > ?)
    and (cast(? as bigint) is null or r.kind = ?) and (cast(? as bigint) is null or r.origin = ?)
    and (cast(? as bigint) is null or r.state = ?)
  order by r.number desc limit ?"""
FEED: Final = """select number, entry, state, kind, expires_at, tokens, facets from vmem_records
  where changed between ? and ?"""
BUILD: Final = """select number, entry, state, kind, expires_at, tokens, facets from vmem_records
  where number between ? and ? and state >= 0 order by number"""
BODIES: Final = f"""select {_HEAD_COLUMNS} from vmem_revisions v join vmem_records r on r.number = v.number
  where v.entry in (select value from json_each(?))"""
KNOWN: Final = """select v.number, v.entry, r.record_id, v.revision, v.scope_revision, v.recorded_at, v.body
  from vmem_revisions v join vmem_records r on r.number = v.number
  where v.number between ? and ? and r.state >= 0 and v.scope_revision <= ? and v.recorded_at <= ?
    and not exists (select 1 from vmem_revisions n where n.number = v.number and n.revision = v.revision + 1
                    and n.scope_revision <= ? and n.recorded_at <= ?)
  order by v.number"""
LAST_STAMP: Final = """select max(
  coalesce((select max(committed_at) from vmem_receipts where number between ? and ?), 0),
  coalesce((select max(recorded_at) from vmem_revisions where number between ? and ? and scope_revision <= ?), 0))"""


def vectors_table(generation: int) -> str:
    """The table of a generation's vectors: one a generation, so that a switch is one row and a dropped table."""
    return f"vmem_vectors_{int(generation)}"


def past_vectors_table(generation: int) -> str:
    """The table of vectors that a changed text has left behind, for what was known then."""
    return f"vmem_past_vectors_{int(generation)}"


def create_vectors(generation: int) -> tuple[str, ...]:
    """The statements that make the tables of a generation's vectors.

    A vector is of the revisions ``since`` to ``revision``, which have the same text.
    """
    columns = "since integer not null, revision integer not null, vector blob not null"
    past = past_vectors_table(generation)
    return (
        f"create table {vectors_table(generation)}(number integer primary key, {columns})",
        f"create table {past}(entry integer primary key, number bigint not null, {columns})",
        f"create index {past}_number on {past}(number)",
    )


def put_vector(generation: int, *, text_changed: bool) -> str:
    """The statement that sets a record's vector: number, since, revision, vector."""
    since = "excluded.since" if text_changed else "old.since"
    return f"""insert into {vectors_table(generation)} as old(number, since, revision, vector) values(?, ?, ?, ?)
      on conflict(number) do update set since = {since}, revision = excluded.revision, vector = excluded.vector"""


def keep_past_vector(generation: int) -> str:
    """The statement that sets a record's vector aside, before its text changes."""
    return f"""insert into {past_vectors_table(generation)}(entry, number, since, revision, vector)
      select r.entry, v.number, v.since, v.revision, v.vector
      from vmem_records r join {vectors_table(generation)} v on v.number = r.number where r.number = ?"""


def forget_vectors(generation: int) -> tuple[str, ...]:
    """The statements that delete all vectors of a record."""
    return (
        f"delete from vmem_unembeddable where generation = {int(generation)} and number = ?",
        f"delete from {vectors_table(generation)} where number = ?",
        f"delete from {past_vectors_table(generation)} where number = ?",
    )


def prune_vectors(generation: int) -> str:
    """The statement that deletes the vectors a record had up to a revision: number, revision."""
    return f"delete from {past_vectors_table(generation)} where number = ? and revision <= ?"


def known_vectors(generation: int) -> str:
    """The statement that reads a scope's vectors, current and past ones, each with the revisions it is of."""
    columns = "number, since, revision, vector"
    return f"""select {columns} from {vectors_table(generation)} where number between ? and ?
      union all select {columns} from {past_vectors_table(generation)} where number between ? and ?"""


def scope_numbers(scope_id: int) -> tuple[int, int]:
    """The lowest and the highest number that the scope's rows can have, both inclusive.

    >>> scope_numbers(1)
    (4294967296, 8589934591)
    """
    return scope_id << 32, scope_id << 32 | _LOWEST


def dump(value: Any) -> str:
    """Compact JSON, non-ASCII kept."""
    return _encode(value)


_encode: Final = json_encoder()


def record_body(record: Record) -> str:
    """What a revision's row keeps as JSON, besides its columns."""
    return dump(
        {
            "text": record.text,
            "kind": KINDS.index(record.kind),
            "origin": ORIGINS.index(record.origin),
            "active": record.status == "active",
            "sources": [_trim(source) for source in record.sources],
            "links": [[link.relation, link.record_id] for link in record.links],
            "importance": record.importance,
            "metadata": record.metadata,
            "created_at": to_micros(record.created_at),
            "expires_at": None if record.expires_at is None else to_micros(record.expires_at),
            "operation_id": record.operation_id,
        }
    )


_SOURCE_FIELDS: Final = ("kind", "digest", "message_id", "chat_id", "run_id", "tool_call_id", "tool_name", "uri")
_source_values: Final = operator.attrgetter(*_SOURCE_FIELDS)


def _trim(source: Source) -> dict[str, str]:
    given = zip(_SOURCE_FIELDS, _source_values(source), strict=True)
    return {name: value for name, value in given if value is not None}


def is_kept(body: str | None) -> bool:
    """Whether a revision's row still holds its content, or the zeros that took its place."""
    return body is not None and body.startswith("{")


def load_record(
    scope: Scope, record_id: str, revision: int, scope_revision: int, recorded_at: int, body: str
) -> Record:
    """A revision from its row. What it says was checked before it was written and is not checked again."""
    data = json.loads(body)
    expires = data["expires_at"]
    return build_record(
        record_id,
        revision,
        scope,
        data["text"],
        KINDS[data["kind"]],
        ORIGINS[data["origin"]],
        "active" if data["active"] else "retracted",
        tuple([_build_source(*map(source.get, _SOURCE_FIELDS)) for source in data["sources"]]),
        tuple([_build_link(*link) for link in data["links"]]),
        data["importance"],
        data["metadata"],
        from_micros(data["created_at"]),
        from_micros(recorded_at),
        None if expires is None else from_micros(expires),
        data["operation_id"],
        scope_revision,
    )


def load_doubted_record(
    scope: Scope, record_id: str, revision: int, scope_revision: int, recorded_at: int, body: str
) -> Record:
    """A revision from a row that somebody else may have changed.

    Raises:
        InvalidRequestError: If it says what no record can say.
    """
    loaded = load_record(scope, record_id, revision, scope_revision, recorded_at, body)
    sources, links = tuple(map(replace, loaded.sources)), tuple(map(replace, loaded.links))
    return replace(loaded, sources=sources, links=links)


def receipt_body(receipt: Receipt) -> str:
    """What a receipt's row keeps as JSON, besides its columns."""
    changes = [[change.record_id, change.revision, change.action] for change in receipt.changes]
    return dump([receipt.kind, changes, [[note.code, note.count] for note in receipt.notes]])


def load_receipt(
    scope: Scope, operation_id: str, number: int, committed_at: int, redacted: int, request: bytes, body: str
) -> StoredReceipt:
    """A committed operation from its row."""
    kind, changes, notes = json.loads(body)
    receipt = Receipt(
        operation_id,
        kind,
        scope,
        number & _LOWEST,
        from_micros(committed_at),
        tuple(Change(*change) for change in changes),
        tuple(Note(*note) for note in notes),
        bool(redacted),
    )
    return StoredReceipt(receipt, StoredRequest(bytes(request[:16]), bytes(request[16:])))


def load_scope(key: str) -> Scope:
    """A scope from its key."""
    return Scope(**json.loads(key))


def id_list(values: Sequence[Any]) -> str:
    """Values as one JSON parameter for ``json_each``: no limit on their number, and no SQL made from them."""
    return dump(list(values))


def body_text(body: str) -> str:
    """The text of a revision's body."""
    text: str = json.loads(body)["text"]
    return text
