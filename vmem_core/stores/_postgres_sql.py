"""PostgreSQL's form of the tables and of the statements that both SQL stores share.

Owns the translation of a shared statement: parameters, arrays, and the schema's name before every table. Does not
own what the statements do (``_sql.py``).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from vmem_core.stores import _sql

ENTRIES: Final = "vmem_entries"  # the sequence that orders revisions; within a scope its lock makes it a true order
_TABLE = re.compile(r"('?)\b(vmem_[a-z0-9_]+)\b")  # a sequence is named in a literal
_LIST = re.compile(r"(\w+) in \(select value from json_each\(\?\)\)")
_TEXT_COLUMNS: Final = {"record_id", "message_id", "operation_id"}
_DATABASE_TIME: Final = "(extract(epoch from clock_timestamp()) * 1000000)::bigint"

TABLES: Final = (
    "create table vmem_schema(version integer not null)",
    "create table vmem_store(name text primary key, value text not null)",
    """create table vmem_scopes(scope_id bigint generated always as identity primary key,
       scope_key text not null unique, revision bigint not null, last_stamp bigint not null,
       records bigint not null)""",
    """create table vmem_records(number bigint primary key, record_id text not null unique, entry bigint not null,
       revision bigint not null, changed bigint not null, state integer not null, kind integer not null,
       origin integer not null, expires_at bigint, text_key bigint, tokens bytea not null, facets bytea not null)""",
    "create index on vmem_records(changed)",
    "create index on vmem_records(text_key, number) where text_key is not null",
    "create sequence vmem_entries",
    """create table vmem_revisions(entry bigint primary key, number bigint not null, revision bigint not null,
       scope_revision bigint not null, recorded_at bigint not null, body text not null)""",
    "create unique index on vmem_revisions(number, revision)",
    """create table vmem_generations(generation bigint primary key, model_id text not null, dims integer not null,
       state text not null, epoch bigint not null)""",
    "create unique index on vmem_generations(state) where state = 'active'",
    """create table vmem_unembeddable(generation bigint not null, number bigint not null, revision bigint not null,
       primary key(generation, number))""",
    """create table vmem_receipts(number bigint primary key, scope_id bigint not null, operation_id text not null,
       committed_at bigint not null, redacted integer not null, request bytea not null, body text not null)""",
    "create unique index on vmem_receipts(scope_id, operation_id)",
    "create table vmem_mentions(receipt bigint not null, number bigint not null, primary key(receipt, number))",
    "create index on vmem_mentions(number)",
    "create table vmem_messages(scope_id bigint not null, message_id text not null, primary key(scope_id, message_id))",
)

# Statements that PostgreSQL words in another way. Text goes with the row: MVCC never overwrites in place, so the
# old row waits for VACUUM, which scrub() runs.
_OWN: Final = {
    _sql.LOAD: _sql.LOAD.replace("r.request, r.body, null", f"r.request, r.body, {_DATABASE_TIME}"),
    _sql.OVERWRITE_REVISION: "update vmem_revisions set body = '' where entry = ?",
    _sql.OVERWRITE_TEXT: "update vmem_revisions set body = '' where number = ?",
    _sql.EMPTY_RECORD: _sql.EMPTY_RECORD.replace(
        "tokens = x'', facets = x''", "tokens = ''::bytea, facets = ''::bytea"
    ),
    _sql.REDACT_RECEIPT: f"""update vmem_receipts set redacted = 1, request = '\\x{_sql.ERASED.hex()}'::bytea
      where number = ?""",
    # By code point, whatever the database's locale.
    _sql.DUMP_MESSAGES: """select message_id from vmem_messages where scope_id = ? and message_id collate "C" > ?
      order by message_id collate "C" limit ?""",
    _sql.LAST_STAMP: _sql.LAST_STAMP.replace("select max(\n", "select greatest(\n"),
    _sql.INSERT_RECEIPT: """insert into vmem_receipts(number, scope_id, operation_id, committed_at, redacted, request,
      body) values(?, ?, ?, ?, 0, ?, ?)""",
    _sql.INSERT_REVISION: f"""insert into vmem_revisions(entry, number, revision, scope_revision, recorded_at, body)
      values(nextval('{ENTRIES}'), ?, ?, ?, ?, ?)""",
    # The entry that was just numbered, in this transaction: nobody waits for the database to tell it.
    _sql.INSERT_RECORD: _sql.INSERT_RECORD.replace("values(?, ?, ?,", f"values(?, ?, currval('{ENTRIES}'),"),
    _sql.UPDATE_RECORD: _sql.UPDATE_RECORD.replace("set entry = ?,", f"set entry = currval('{ENTRIES}'),").replace(
        "coalesce(?, text_key), tokens = coalesce(?, tokens)",
        "coalesce(?::bigint, text_key), tokens = coalesce(?::bytea, tokens)",
    ),
}
# Which value of these is the entry that currval() stands for.
ENTRY_PLACE: Final = {_sql.INSERT_RECORD: 2, _sql.UPDATE_RECORD: 0}
NEXT_ENTRIES: Final = f"select nextval('{ENTRIES}') from generate_series(1, ?::integer)"
# A writer holds the first to the end of its transaction, who begins or switches generations the second: each waits for
# the other, and readers for neither.
LOCK_GENERATIONS: Final = (
    "lock table vmem_generations in row share mode",
    "lock table vmem_generations in exclusive mode",
)
LOCK_SCOPES: Final = """select scope_id from vmem_scopes where scope_id in (select value from json_each(?))
  order by scope_id for update"""
LOCK_SCOPE: Final = (
    # Not tried where the row is there: "on conflict" would use up an id at every write, and ids are 31 bits.
    """insert into vmem_scopes(scope_key, revision, last_stamp, records)
      select asked.scope_key, 0, 0, 0 from (select cast(? as text) as scope_key) as asked
      where not exists (select 1 from vmem_scopes s where s.scope_key = asked.scope_key) on conflict do nothing""",
    "select scope_id from vmem_scopes where scope_key = ? for update",
)


@lru_cache(maxsize=1024)
def translate(statement: str, schema: str) -> str:
    """A shared statement in PostgreSQL's words, its tables named with their quoted schema.

    Args:
        statement: As ``_sql.py`` has it.
        schema: Quoted already, and its percent signs doubled: every statement is sent with parameters.

    >>> translate("select 1 from vmem_scopes where scope_key = ?", '"public"')
    'select 1 from "public".vmem_scopes where scope_key = %s'
    """
    text = _OWN.get(statement, statement)
    text = re.sub(r"create index \w+ on", "create index on", text)  # named by the database, inside the schema
    text = _LIST.sub(_array, text)
    text = text.replace("integer primary key", "bigint primary key").replace("vector blob", "vector bytea")
    named = {"": schema, "'": "'" + schema.replace("'", "''")}  # inside a literal a quote would be its end
    return _TABLE.sub(lambda match: f"{named[match[1]]}.{match[2]}", text.replace("?", "%s"))


def _array(match: re.Match[str]) -> str:
    kind = "" if match[1] in _TEXT_COLUMNS else "::bigint"
    return f"{match[1]} in (select value{kind} from json_array_elements_text(?::json) as list(value))"
