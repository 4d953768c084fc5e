"""Generations of vectors in the in-memory store: begin, what is missing, put, switch, each under the store's lock.

Owns where the vectors are kept. Does not own a rule (``generations.py``). Reads first: this is what the SQL stores do
with tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from vmem_core import generations
from vmem_core.errors import InvalidRequestError
from vmem_core.generations import Pending
from vmem_core.results import Generation
from vmem_core.stores._memory_rows import MemoryRow

if TYPE_CHECKING:
    from vmem_core.stores.memory import InMemoryStore


class GenerationRows:
    """The active and the pending generation, and the last number that was given."""

    def __init__(self) -> None:
        self._kept: list[Generation] = []
        self._last = 0

    @property
    def active(self) -> Generation | None:
        """The active generation, or None."""
        return next((one for one in self._kept if one.state == "active"), None)

    @property
    def kept(self) -> Sequence[Generation]:
        """Both, where there are."""
        return self._kept

    @property
    def last(self) -> int:
        """The greatest number that was ever given."""
        return self._last

    def find(self, number: int) -> Generation | None:
        """One of both, by its number."""
        return next((one for one in self._kept if one.number == number), None)

    def add(self, model_id: str, dims: int, state: Literal["active", "pending"]) -> None:
        """A new one."""
        self._last += 1
        self._kept.append(Generation(self._last, model_id, dims, state))

    def retire(self, number: int) -> None:
        """One goes."""
        self._kept = [one for one in self._kept if one.number != number]

    def activate(self, chosen: Generation) -> None:
        """One becomes the only one."""
        self._kept = [Generation(chosen.number, chosen.model_id, chosen.dims, "active")]


class MemoryGenerations:
    """The generations of an in-memory store's vectors."""

    def __init__(self, store: InMemoryStore) -> None:
        self._store = store

    async def active(self) -> Generation | None:
        """The active generation, or None if no vector was ever stored."""
        self._store._check_open()
        return self._store.known_generation

    async def prepared(self) -> Generation | None:
        """The pending generation, or None if none is being prepared."""
        self._store._check_open()
        return generations.prepared(self._store._generations.kept)

    async def begin(self, model_id: str, dims: int) -> Generation:
        """The generation to fill for a model; a pending one of another model is given up."""
        generations.check_model(model_id, dims)
        with self._store._lock:
            self._store._check_open()
            rows = self._store._generations
            beginning = generations.begin(rows.kept, rows.last, model_id, dims)
            if beginning.retires is not None:
                rows.retire(beginning.retires)
                for row in self._records():
                    row.prepared = None
            if beginning.is_new:
                rows.add(model_id, dims, "pending")
            return beginning.generation

    async def pending(self, number: int, limit: int, *, after: str | None = None) -> list[Pending]:
        """The next records whose current revision a generation lacks."""
        generations.check_page(number, limit, after)
        with self._store._lock:
            self._store._check_open()
            generation = self._store._generations.find(number)
            if generation is None:
                return []
            lacking = (row.record for row in self._records(after) if not _has(row, generation))
            found = (record for record in lacking if record is not None)
            return [(record.id, record.revision, record.text) for record in islice(found, limit)]

    async def missing(self, number: int) -> int:
        """How many records' current revisions a generation lacks."""
        generations.check_number(number)
        with self._store._lock:
            self._store._check_open()
            generation = self._store._generations.find(number)
            return 0 if generation is None else sum(not _has(row, generation) for row in self._records())

    async def put(self, number: int, vectors: Sequence[tuple[str, int, Any]]) -> int:
        """Store vectors of current revisions, and return how many that were."""
        generations.check_number(number)
        filling = generations.check_vectors(vectors)
        with self._store._lock:
            self._store._check_open()
            generation = self._store._generations.find(number)
            if generation is None:
                return 0
            filling.check_fits(generation)
            rows = self._store._rows
            known = {one[0]: rows[one[0]] for one in filling.rows if one[0] in rows}
            current = filling.current({id: len(row.revisions) for id, row in known.items() if not row.forgotten})
            for record_id, revision, vector in current:
                _put(known[record_id], generation, revision, vector)
            return len(current)

    async def activate(self, number: int) -> bool:
        """Switch to a generation that lacks nothing."""
        generations.check_number(number)
        with self._store._lock:
            self._store._check_open()
            rows = self._store._generations
            generation = rows.find(number)
            is_complete = generation is not None and all(_has(row, generation) for row in self._records())
            if generation is None or not generations.may_switch(generation, is_complete=is_complete):
                return False
            if generation.state == "pending":
                for row in self._records():
                    _switch(row)
                rows.activate(generation)
            return True

    def _records(self, after: str | None = None) -> Iterator[MemoryRow]:
        """The records there are, scope by scope in the order they were made, after a place."""
        start = None if after is None else self._store._rows.get(after)
        if after is not None and start is None:
            raise InvalidRequestError("is not the id of a record of this store", path="after")
        begun = start is None
        for scope in self._store._scopes.values():
            first = 0
            if not begun and start is not None:
                if scope is not start.scope:
                    continue
                begun, first = True, start.number + 1
            yield from (row for row in islice(scope.rows, first, None) if not row.forgotten)


def _has(row: MemoryRow, generation: Generation) -> bool:
    """Whether a generation has or marks a record's current revision."""
    current = len(row.revisions)
    if generation.state == "pending":
        return row.prepared is not None and row.prepared[0] == current
    return row.vector is not None or row.unembeddable == current


def _put(row: MemoryRow, generation: Generation, revision: int, vector: bytes | None) -> None:
    if generation.state == "pending":
        row.prepared = (revision, vector)
        return
    _set(row, revision, vector)
    row.scope.changed.add(row.number)


def _set(row: MemoryRow, revision: int, vector: bytes | None) -> None:
    row.vector, row.vector_since = vector, row.since
    row.unembeddable = revision if vector is None else 0


def _switch(row: MemoryRow) -> None:
    """What was prepared takes the place of what was there; vectors of earlier texts go with their model."""
    assert row.prepared is not None
    revision, vector = row.prepared
    row.past_vectors.clear()
    row.prepared = None
    _set(row, revision, vector)
