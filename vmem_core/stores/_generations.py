"""Generations of vectors in a SQL store: begin, what is missing, put, switch. Each function is one transaction.

Owns the statements. Does not own a rule (``generations.py``) or when the transaction begins and ends.

A pending vector is of one revision, and counts only while that is the record's current one; so writers need not know
that a generation is being prepared. A switch waits for the writers that have begun, and drops the old tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from vmem_core import generations
from vmem_core.errors import InvalidRequestError
from vmem_core.generations import Filling, Pending
from vmem_core.results import Generation
from vmem_core.stores import _sql
from vmem_core.stores._database import Database

_KEPT: Final = """select generation, model_id, dims, state from vmem_generations where state <> 'retired'
  order by generation"""
_LAST: Final = "select coalesce(max(generation), 0) from vmem_generations"
_INSERT: Final = "insert into vmem_generations(generation, model_id, dims, state, epoch) values(?, ?, ?, ?, 0)"
_SET_STATE: Final = "update vmem_generations set state = ? where generation = ?"
_NEXT_EPOCH: Final = "update vmem_generations set epoch = epoch + 1 where generation = ?"
_NUMBER_OF: Final = "select number from vmem_records where record_id = ?"
_SCOPES_OF: Final = "select number from vmem_records where record_id in (select value from json_each(?))"
_CURRENT: Final = """select record_id, number, revision from vmem_records
  where record_id in (select value from json_each(?)) and state >= 0"""
_BODY: Final = "select body from vmem_revisions where number = ? and revision = ?"
_MARK: Final = """insert into vmem_unembeddable(generation, number, revision) values(?, ?, ?)
  on conflict(generation, number) do update set revision = excluded.revision"""
_UNMARK: Final = """delete from vmem_unembeddable
  where generation = ? and number in (select value from json_each(?))"""
_UNMARK_ALL: Final = "delete from vmem_unembeddable where generation = ?"


def _missing(columns: str, generation: int) -> str:
    """A query of the records whose current revision has neither a vector nor a mark; ``generation`` is its value.

    Each row is looked up by its key, whatever a planner believes of the size of a table that grows meanwhile.
    """
    table = _sql.vectors_table(generation)
    return f"""select {columns} from vmem_records r where r.number > ? and r.state >= 0
      and coalesce((select x.revision from {table} x where x.number = r.number), 0) <> r.revision
      and coalesce((select u.revision from vmem_unembeddable u
                    where u.generation = ? and u.number = r.number), 0) <> r.revision"""


def _find(connection: Database, number: int) -> Generation | None:
    return next((one for one in kept(connection) if one.number == number), None)


def kept(connection: Database) -> list[Generation]:
    """The active and the pending generation, if there are any."""
    return [Generation(*row) for row in connection.execute(_KEPT).fetchall()]


def begin(connection: Database, model_id: str, dims: int) -> Generation:
    """The generation to fill for a model; a pending one of another model goes, with its vectors."""
    connection.hold_generations(exclusively=True)
    last = connection.execute(_LAST).fetchone()[0]
    beginning = generations.begin(kept(connection), last, model_id, dims)
    if beginning.retires is not None:
        _retire(connection, beginning.retires)
    if beginning.is_new:
        made = beginning.generation
        connection.execute(_INSERT, (made.number, made.model_id, made.dims, made.state))
        connection.make_vectors(made.number, made.dims)
    return beginning.generation


def _retire(connection: Database, number: int) -> None:
    connection.execute(_SET_STATE, ("retired", number))
    connection.execute(_UNMARK_ALL, (number,))
    for table in (_sql.vectors_table(number), _sql.past_vectors_table(number)):
        connection.drop_vectors(table)


def pending(connection: Database, number: int, limit: int, after: str | None) -> list[Pending]:
    """The next records that a generation lacks, in the order of their numbers.

    Raises:
        InvalidRequestError: If the store never had a record ``after``.
    """
    if not generations.can_be_filled(_find(connection, number)):
        return []
    columns = "r.record_id, r.revision, (select v.body from vmem_revisions v where v.entry = r.entry)"
    statement = f"{_missing(columns, number)} order by r.number limit ?"
    rows = connection.execute(statement, (_place(connection, after), number, limit)).fetchall()
    return [(row[0], row[1], _sql.body_text(row[2])) for row in rows]


def _place(connection: Database, after: str | None) -> int:
    if after is None:
        return -1
    row = connection.execute(_NUMBER_OF, (after,)).fetchone()
    if row is None:
        raise InvalidRequestError("is not the id of a record of this store", path="after")
    place: int = row[0]
    return place


def missing(connection: Database, number: int) -> int:
    """How many records a generation lacks; 0 for one that cannot be filled."""
    if not generations.can_be_filled(_find(connection, number)):
        return 0
    count: int = connection.execute(_missing("count(*)", number), (-1, number)).fetchone()[0]
    return count


def put(connection: Database, number: int, filling: Filling) -> int:
    """Store what is of a current revision, and return how many that were.

    Raises:
        EmbeddingMismatchError: For vectors of another size than the generation's.
    """
    connection.hold_generations()
    generation = _find(connection, number)
    if generation is None or not generations.can_be_filled(generation):
        return 0
    filling.check_fits(generation)
    ids = _sql.id_list([row[0] for row in filling.rows])
    found = connection.execute(_SCOPES_OF, (ids,)).fetchall()
    connection.hold_scopes(sorted({row[0] >> 32 for row in found}))
    numbers, revisions = {}, {}
    for record_id, place, revision in connection.execute(_CURRENT, (ids,)).fetchall():
        numbers[record_id], revisions[record_id] = place, revision
    rows = [(numbers[row[0]], *row[1:]) for row in filling.current(revisions)]
    _store(connection, number, rows)
    if rows and generation.state == "active":
        connection.execute(_NEXT_EPOCH, (number,))  # indexes take up what was put
    return len(rows)


def _store(connection: Database, generation: int, rows: Sequence[tuple[int, int, bytes | None]]) -> None:
    """Put vectors, or marks in their place."""
    sinces = [_since(connection, number, revision) for number, revision, vector in rows if vector is not None]
    connection.execute(_UNMARK, (generation, _sql.id_list([row[0] for row in rows])))
    since = iter(sinces)
    statement = _sql.put_vector(generation, text_changed=True)
    for number, revision, vector in rows:
        if vector is None:
            connection.execute(f"delete from {_sql.vectors_table(generation)} where number = ?", (number,))
            connection.execute(_MARK, (generation, number, revision))
        else:
            connection.execute(statement, (number, next(since), revision, vector))


def _since(connection: Database, number: int, revision: int) -> int:
    """The first of the revisions up to this one that have its text: the vector is theirs too."""
    text = None
    for earlier in range(revision, 0, -1) if revision > 1 else ():
        row = connection.execute(_BODY, (number, earlier)).fetchone()
        found = _sql.body_text(row[0]) if row is not None and _sql.is_kept(row[0]) else None
        if found is None or text not in (None, found):
            return earlier + 1
        text = found
    return 1


def activate(connection: Database, number: int) -> bool:
    """Switch to a generation that lacks nothing; the one before goes, with its vectors.

    Returns:
        Whether the store searches with it now.
    """
    connection.hold_generations(exclusively=True)
    known = kept(connection)
    generation = next((one for one in known if one.number == number), None)
    is_complete = generation is not None and _is_complete(connection, number)
    if not generations.may_switch(generation, is_complete=is_complete):
        return False
    for other in known:
        if other.number != number and other.state == "active":
            _retire(connection, other.number)
    connection.execute(_SET_STATE, ("active", number))
    return True


def _is_complete(connection: Database, number: int) -> bool:
    return connection.execute(f"{_missing('1', number)} limit 1", (-1, number)).fetchone() is None
