"""Reads that rank: a scope's index, refreshed from its change feed, and what was known at an earlier time.

Owns the cache of indexes and how rows become one. One reader has one connection and one thread. Does not own
ranking (``index.py``) or what a search means (``indexing.py``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from vmem_core import indexing
from vmem_core.clock import Clock
from vmem_core.index import Block, IndexCache, Outside, Query, Row, ScopeIndex
from vmem_core.plan import Survey
from vmem_core.records import KINDS, ORIGINS, Record, Scope
from vmem_core.results import Generation
from vmem_core.store import Found, Listing, Search
from vmem_core.stores import _sql
from vmem_core.stores._database import Database
from vmem_core.stores._transaction import ScopeState, equals, load_state, time_of
from vmem_core.values import to_micros

_FAR: Final = 2**62
_BLOCK_ROWS: Final = 8_192
_Span = tuple[int, int, bytes]  # the revisions a vector is of, both inclusive, and the vector


class Reader:
    """The ranked reads of one store.

    Args:
        clock: The store's clock: expiry is judged by it.
        language: The store's language.
        cache_bytes: How many bytes of indexes are kept.
    """

    def __init__(self, clock: Clock, language: str, cache_bytes: int) -> None:
        self._clock, self._language = clock, language
        self._cache = IndexCache(cache_bytes)
        self._seen: dict[int, tuple[int, int, int]] = {}  # scope id: revision, generation, epoch of its index

    def search(self, connection: Database, scope: Scope, search: Search) -> list[Found]:
        """The best hits, in order, from one snapshot of the file."""
        state = load_state(connection, scope)
        if state.scope_id is None:
            indexing.index_query(search, self._language, 0, state.generation)  # a mismatch is told all the same
            return []
        if search.recorded_as_of is not None or search.at_scope_revision is not None:
            return self._search_known(connection, scope, search, state)
        now = time_of(state, self._clock)
        query = indexing.index_query(search, self._language, now, state.generation)
        index = self._index(connection, state)
        outside = None if index.holds_vectors else self._outside(connection, state, query)
        ranked = indexing.rank(index, search, query, outside)
        rows = connection.execute(_sql.BODIES, (_sql.id_list([hit.entry for hit in ranked]),)).fetchall()
        records = {row[0]: _sql.load_record(scope, row[1], row[2], *row[4:7]) for row in rows}
        return [Found(records[h.number], h.score, h.match, h.vector_rank, h.lexical_rank) for h in ranked]

    def survey(
        self, connection: Database, scope: Scope, searches: Sequence[Search], equal_texts: Sequence[int]
    ) -> Survey:
        """The scope's revision, the best records of each search, and active records by text key."""
        state = load_state(connection, scope)
        now = time_of(state, self._clock)
        similar = [tuple(found.record for found in self.search(connection, scope, search)) for search in searches]
        equal = {key: equals(connection, scope, key, state, now) for key in equal_texts}
        return Survey(state.revision, tuple(similar), equal)

    def _index(self, connection: Database, state: ScopeState) -> ScopeIndex:
        scope_id = state.scope_id
        assert scope_id is not None
        generation = state.generation.number if state.generation else 0
        index, seen = self._cache.get(scope_id), self._seen.get(scope_id)
        if index is None or seen is None or seen[1:] != (generation, state.epoch):
            index = self._build(connection, state)
        elif seen[0] != state.revision:
            bounds = (scope_id << 32 | seen[0] + 1, scope_id << 32 | state.revision)
            rows = [Row(*row) for row in connection.execute(_sql.FEED, bounds)]
            index.apply(rows, self._vectors(connection, rows, state.generation))
        else:
            return index
        self._seen[scope_id] = (state.revision, generation, state.epoch)
        self._cache.put(scope_id, index)
        return index

    def _build(self, connection: Database, state: ScopeState) -> ScopeIndex:
        rows = [Row(*row) for row in connection.execute(_sql.BUILD, state.numbers)]
        dims = state.generation.dims if state.generation else None
        hold = self._cache.fits(len(rows), dims)
        index = ScopeIndex(dims, hold_vectors=hold)
        index.apply(rows, {})
        if state.generation is not None and hold:
            index.fill(_blocks(connection, state.numbers, state.generation))
        return index

    def _vectors(self, connection: Database, rows: Sequence[Row], generation: Generation | None) -> dict[int, bytes]:
        if generation is None:
            return {}
        return self._vectors_of(connection, [row.number for row in rows], generation)

    def _vectors_of(self, connection: Database, numbers: Sequence[int], generation: Generation) -> dict[int, bytes]:
        statement = f"""select number, vector from {_sql.vectors_table(generation.number)}
            where number in (select value from json_each(?))"""
        return dict(connection.execute(statement, (_sql.id_list(numbers),)).fetchall())

    def _outside(self, connection: Database, state: ScopeState, query: Query) -> Outside | None:
        """The vectors of a scope whose index is too large to hold them, from the database."""
        if state.generation is None or query.vector is None:
            return None
        blocks = _blocks(connection, state.numbers, state.generation)
        return Outside(blocks, self._finder(connection, state.generation))

    def _finder(self, connection: Database, generation: Generation) -> Callable[[Sequence[int]], Block]:
        def find(numbers: Sequence[int]) -> Block:
            return matrix(list(self._vectors_of(connection, numbers, generation).items()), generation.dims)

        return find

    def _search_known(self, connection: Database, scope: Scope, search: Search, state: ScopeState) -> list[Found]:
        until = _FAR if search.at_scope_revision is None else min(search.at_scope_revision, _FAR)
        at = _FAR if search.recorded_as_of is None else to_micros(search.recorded_as_of)
        rows = connection.execute(_sql.KNOWN, (*state.numbers, until, at, until, at)).fetchall()
        vectors: defaultdict[int, list[_Span]] = defaultdict(list)
        if state.generation is not None and search.vector is not None:
            found = connection.execute(_sql.known_vectors(state.generation.number), state.numbers * 2)
            for number, *span in found:
                vectors[number].append((span[0], span[1], span[2]))
        known = [_known(scope, row, vectors[row[0]]) for row in rows if _sql.is_kept(row[6])]
        now = at if search.recorded_as_of is not None else _stamp_of(connection, state, until)
        hits = indexing.search_known(known, search, self._language, now, state.generation)
        return [Found(one.record, h.score, h.match, h.vector_rank, h.lexical_rank) for one, h in hits]

    def list(self, connection: Database, scope: Scope, listing: Listing) -> tuple[list[Record], int | None]:
        """A page, newest creation first, and the number to go on before."""
        state = load_state(connection, scope)
        low, high = state.numbers
        if state.scope_id is not None and listing.before is not None:
            high = min(high, low + listing.before - 1)
        now = time_of(state, self._clock)
        kind = None if listing.kind is None else KINDS.index(listing.kind)
        origin = None if listing.origin is None else ORIGINS.index(listing.origin)
        status = None if listing.status is None else int(listing.status == "active")
        values = (low, high, now, kind, kind, origin, origin, status, status, listing.limit + 1)
        rows = connection.execute(_sql.LIST, values).fetchall()
        page = rows[: listing.limit]
        more = page[-1][0] - low if len(rows) > listing.limit else None
        return [_sql.load_record(scope, row[1], row[2], *row[4:7]) for row in page], more

    def count(self, connection: Database, scope: Scope) -> int:
        """How many records are active and unexpired."""
        state = load_state(connection, scope)
        now = time_of(state, self._clock)
        found: int = connection.execute(_sql.COUNT, (*state.numbers, now)).fetchone()[0]
        return found


def _known(scope: Scope, row: Sequence[Any], vectors: Sequence[_Span]) -> indexing.Known:
    record = _sql.load_record(scope, *row[2:7])
    vector = next((v for since, until, v in vectors if since <= record.revision <= until), None)
    return indexing.Known(row[0], row[1], record, vector)


def _stamp_of(connection: Database, state: ScopeState, until: int) -> int:
    """When the scope's revision ``until`` was committed: no later stamp exists among what is kept up to it."""
    low, high = state.numbers
    last = min(low + until, high)
    found: int = connection.execute(_sql.LAST_STAMP, (low, last, low, high, until)).fetchone()[0]
    return found


def matrix(pairs: Sequence[tuple[int, bytes]], dims: int) -> tuple[Any, Any]:
    """Numbers, and their vectors as the rows of a float32 matrix, shape (len(pairs), dims)."""
    numbers = np.fromiter((number for number, _ in pairs), dtype=np.int64, count=len(pairs))
    matrix = np.frombuffer(b"".join(vector for _, vector in pairs), dtype="<f4").reshape(len(pairs), dims)
    return numbers, matrix


def _blocks(connection: Database, numbers: tuple[int, int], generation: Generation) -> Iterator[tuple[Any, Any]]:
    low, high = numbers
    statement = f"""select number, vector from {_sql.vectors_table(generation.number)}
      where number between ? and ? order by number limit {_BLOCK_ROWS}"""
    while pairs := connection.execute(statement, (low, high)).fetchall():
        yield matrix(pairs, generation.dims)
        if len(pairs) < _BLOCK_ROWS:
            return
        low = pairs[-1][0] + 1
