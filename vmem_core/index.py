"""A scope's search index in memory, and the cache that keeps such indexes between recalls.

Owns the columns, vectors and postings of one scope's current revisions, the filters of a search, and how a change
of a record reaches them. Does not own the formulas (``ranking.py``), how texts become hashes (``tokens.py``) or
when an index is out of date (the stores: they compare the scope's revision and feed what changed since).

Every change of a record appends a slot and kills the record's old one, so nothing is ever rewritten in place; when
dead slots pile up the index is compacted. Counts are taken over living slots only: an index that followed the feed
gives the same hits, in the same order and with the same bits, as one that was built anew.

Nothing here is safe for use by several threads at once: a store serialises the calls on one index.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vmem_core.postings import HASHES, Postings, post
from vmem_core.ranking import Integers, Mask, Vectors, bm25, bm25_norms, cosine, fuse, fuse_scores, idf, top
from vmem_core.vector_blocks import VectorBlocks

ACTIVE, RETRACTED, FORGOTTEN = 1, 0, -1

_NEVER = np.iinfo(np.int64).max
_FLOATS = np.dtype("<f4")

_DEAD_LEAST = 256  # with fewer dead slots it is not worth to compact
_SLOT_OF_BYTES = 120  # measured on CPython 3.11: a key of the dictionary of slots

Block = tuple[Integers, Vectors]  # record numbers and the rows of their unit vectors


class Row(NamedTuple):
    """What the index keeps of a record's current revision.

    Attributes:
        number: The record's place in its scope; it never changes.
        entry: The global append order of the revision: the greater the newer, no two equal.
        state: 1 active, 0 retracted, -1 forgotten (then only ``number`` counts).
        kind: The store's small integer for the kind.
        expires_at: Microseconds since the epoch, or ``None``.
        tokens: ``tokens.token_hashes`` of the text.
        facets: ``tokens.facets`` of the metadata.
    """

    number: int
    entry: int
    state: int
    kind: int
    expires_at: int | None
    tokens: bytes
    facets: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Query:
    """What to search for, and what may be found.

    Attributes:
        tokens: Hashes of the unique query tokens, in order; empty for a search by vector alone.
        vector: A unit float32 vector, shape (dims,), or ``None`` for a search by text alone.
        top_k: Hits wanted.
        now: Microseconds since the epoch; records that expire then or earlier are hidden.
        kind: Only this kind.
        facets: Only records that hold all these metadata pairs, from ``tokens.facet_hash``.
        include_retracted: Retracted records too.
        include_expired: Expired records too.
        fusion: ``"rrf"`` by ranks, ``"scores"`` by a sum of scores: see ``ranking.py``.
        depth: Length of the two lists before fusion; by default ``max(10, top_k)`` by ranks, ``max(20, 2 * top_k)`` by
            scores. Deep lists let what both find badly pass what one finds well.
    """

    tokens: bytes
    vector: Vectors | None
    top_k: int
    now: int
    kind: int | None = None
    facets: tuple[int, ...] = ()
    include_retracted: bool = False
    include_expired: bool = False
    fusion: str = "rrf"
    depth: int | None = None

    @property
    def list_depth(self) -> int:
        """How many each list may hold."""
        if self.depth is not None:
            return self.depth
        return max(10, self.top_k) if self.fusion == "rrf" else max(20, 2 * self.top_k)


@dataclass(frozen=True, slots=True, eq=False)
class Outside:
    """The vectors of an index that holds none.

    Attributes:
        blocks: All of them in blocks, in any order; or, with ``slack``, each block no nearer than the one before.
        vectors_of: Those of some record numbers, as far as there are any.
        slack: If the blocks come in the order of falling scores, as another engine reckons them, so that reading may
            end early: how much better a row of a later block may score here than the worst row of an earlier one.
    """

    blocks: Iterable[Block]
    vectors_of: Callable[[Sequence[int]], Block]
    slack: float = float("inf")


class Ranked(NamedTuple):
    """A hit: which record, how well and by which list it was found; ranks count from 1."""

    number: int
    entry: int
    score: float
    match: str
    vector_rank: int | None
    lexical_rank: int | None


class _Columns:
    """What is known of each slot, in arrays with room to grow."""

    __slots__ = ("entries", "expires", "has_vector", "kinds", "lengths", "numbers", "states")

    def __init__(self) -> None:
        self.numbers = np.zeros(0, np.int64)
        self.entries = np.zeros(0, np.int64)
        self.expires = np.zeros(0, np.int64)
        self.lengths = np.zeros(0, np.int64)
        self.kinds = np.zeros(0, np.int32)
        self.states = np.zeros(0, np.int8)
        self.has_vector = np.zeros(0, np.bool_)

    @property
    def nbytes(self) -> int:
        return sum([getattr(self, name).nbytes for name in self.__slots__])

    def move(self, slots: Integers | slice, needed: int) -> None:
        """Moves the given slots to the front of new arrays for ``needed`` and some more; all others are gone."""
        for name in self.__slots__:
            kept = getattr(self, name)[slots]
            moved = np.empty(needed + needed // 8 + 8, kept.dtype)
            moved[: len(kept)] = kept
            setattr(self, name, moved)


class ScopeIndex:
    """The current revisions of one scope, ready to be searched.

    Args:
        dims: Size of the vectors, or ``None`` for a store without any.
        hold_vectors: False for a scope too large for memory: its vectors then come to ``search`` in blocks.

    Attributes:
        dims: Size of the vectors held here, 0 for none.

    >>> from vmem_core.tokens import query_tokens, token_hashes, tokenize
    >>> index = ScopeIndex()
    >>> tea, rain = token_hashes(tokenize("She likes tea")), token_hashes(tokenize("It may rain"))
    >>> index.apply([Row(1, 1, ACTIVE, 0, None, tea, b""), Row(2, 2, ACTIVE, 0, None, rain, b"")], {})
    >>> hits = index.search(Query(token_hashes(query_tokens("Who likes tea?")), None, top_k=5, now=0))
    >>> [(hit.number, hit.match, hit.lexical_rank) for hit in hits]
    [(1, 'lexical', 1)]
    """

    def __init__(self, dims: int | None = None, *, hold_vectors: bool = True) -> None:
        self.dims = (dims or 0) if hold_vectors else 0
        self._columns, self._vectors = _Columns(), VectorBlocks(self.dims)
        self._postings, self._facets = Postings(), Postings()
        self._size = 0  # slots in use, dead ones too
        self._living = 0
        self._tokens = 0  # of the living
        self._slot_of: dict[int, int] | None = None  # made for the first refresh
        self._norms: npt.NDArray[np.float64] | None = None  # made by the first search after a change

    @property
    def nbytes(self) -> int:
        """About how many bytes of memory the index takes."""
        held = self._columns.nbytes + self._vectors.nbytes + self._postings.nbytes + self._facets.nbytes
        return held + _SLOT_OF_BYTES * len(self._slot_of or ())

    @property
    def records(self) -> int:
        """How many records it holds, retracted and expired ones too."""
        return self._living

    @property
    def holds_vectors(self) -> bool:
        """Whether vectors are kept here; else ``search`` wants blocks."""
        return self.dims > 0

    def apply(self, rows: Sequence[Row], vectors: Mapping[int, bytes]) -> None:
        """Takes records as they are now: all of them into a new index, or those that changed into one that follows.

        A record that is known already is replaced, its vector too, so the vector must be given again or it is gone.
        A forgotten record leaves; one that was never known is no fault.

        Args:
            rows: Of each record the newest; if a number comes twice, the last counts.
            vectors: Unit vectors by record number, as little-endian float32 bytes. A record without one is found by
                text alone, or until :meth:`fill` gives it one.
        """
        latest = {row.number: row for row in rows}
        present = [row for row in latest.values() if row.state != FORGOTTEN]
        # First, since this alone can fail: vectors of another size change nothing here.
        held, matrix = self._vectors_for([row.number for row in present], vectors)
        if self._living:
            for number in latest:
                self._kill(number)
        self._append(present, held, matrix)
        self._norms = None
        if self._size - self._living > max(_DEAD_LEAST, self._living // 4):
            self._compact()

    def _kill(self, number: int) -> None:
        slot = self._slots().pop(number, None)
        if slot is not None:
            self._columns.states[slot] = FORGOTTEN
            self._living -= 1
            self._tokens -= int(self._columns.lengths[slot])

    def _slots(self) -> dict[int, int]:
        if self._slot_of is None:
            living = np.flatnonzero(self._columns.states[: self._size] != FORGOTTEN)
            self._slot_of = dict(zip(self._columns.numbers[living].tolist(), living.tolist(), strict=True))
        return self._slot_of

    def fill(self, blocks: Iterable[Block]) -> None:
        """Give the records of an index that was just built their vectors.

        Args:
            blocks: Read one at a time, so that no vector is in memory twice. Those of unknown records are left out.
        """
        if not self._size:
            return
        numbers = self._columns.numbers[: self._size]
        order = np.argsort(numbers)
        for given, matrix in blocks:
            slots = order[np.minimum(np.searchsorted(numbers, given, sorter=order), self._size - 1)]
            known = numbers[slots] == given
            self._vectors.put(slots[known], matrix[known])
            self._columns.has_vector[slots[known]] = True

    def _vectors_for(self, numbers: list[int], vectors: Mapping[int, bytes]) -> tuple[Mask, Vectors]:
        """Which of the records have a vector, and those vectors in the same order."""
        if not self.dims or not vectors:
            return np.zeros(len(numbers), np.bool_), np.zeros((0, self.dims), np.float32)
        held = np.array([number in vectors for number in numbers], np.bool_)
        blobs = [vectors[number] for number in numbers if number in vectors]
        return held, np.frombuffer(b"".join(blobs), _FLOATS).reshape(len(blobs), self.dims)

    def _append(self, rows: list[Row], held: Mask, matrix: Vectors) -> None:
        if not rows:
            return
        begin, end = self._size, self._size + len(rows)
        columns = self._columns
        if end > len(columns.numbers):
            columns.move(slice(0, begin), end)
        numbers = [row.number for row in rows]
        columns.numbers[begin:end] = numbers
        columns.entries[begin:end] = [row.entry for row in rows]
        columns.states[begin:end] = [row.state for row in rows]
        columns.kinds[begin:end] = [row.kind for row in rows]
        columns.expires[begin:end] = [_NEVER if row.expires_at is None else row.expires_at for row in rows]
        columns.lengths[begin:end] = post(self._postings, [row.tokens for row in rows], begin)
        post(self._facets, [row.facets for row in rows], begin)
        columns.has_vector[begin:end] = held
        self._vectors.reserve(end)
        self._vectors.put(begin + np.flatnonzero(held), matrix)
        if self._slot_of is not None:
            self._slot_of.update(zip(numbers, range(begin, end), strict=True))
        self._size = end
        self._living += len(rows)
        self._tokens += int(columns.lengths[begin:end].sum())

    def _compact(self) -> None:
        living = np.flatnonzero(self._columns.states[: self._size] != FORGOTTEN)
        new_slots = np.full(self._size, -1, np.int32)
        new_slots[living] = np.arange(len(living), dtype=np.int32)
        self._postings.keep(new_slots)
        self._facets.keep(new_slots)
        self._columns.move(living, len(living))
        self._vectors.keep(living)
        self._size, self._slot_of = len(living), None

    def search(self, query: Query, outside: Outside | None = None) -> list[Ranked]:
        """The best records for a query: a list by vector and a list by text, fused.

        Args:
            query: What to search for. Without a vector, or in an index without dims, text alone decides.
            outside: For an index that holds no vectors: where they are. The hits and their scores are the same as if it
                held them.
        """
        visible, entries, said = self._visible(query), self._columns.entries, self._text_scores(query)
        by_text = top(said, entries[: self._size], visible & (said > 0), query.list_depth)
        if outside is not None and query.vector is not None:
            by_vector = self._best_in_blocks(query, visible, outside)
        else:
            by_vector = self._best_by_vector(query, visible)
        lists = entries[by_vector].tolist(), entries[by_text].tolist()
        both = np.concatenate([by_vector, by_text])
        if query.fusion == "rrf":
            fused = fuse(*lists, query.top_k)
        else:
            texts = dict(zip(entries[both].tolist(), said[both].tolist(), strict=True))
            fused = fuse_scores(*lists, self._vector_scores(query, both, outside), texts, query.top_k)
        number_of = self._numbers_by_entry(both)
        return [Ranked(number_of[hit.entry], hit.entry, hit.score, hit.match, *hit[2:]) for hit in fused]

    def _vector_scores(self, query: Query, slots: Integers, outside: Outside | None) -> dict[int, float]:
        """The cosine of each slot that has a vector, by entry."""
        if query.vector is None:
            return {}
        columns = self._columns
        if outside is not None:
            slot_of = self._slots()
            numbers, matrix = outside.vectors_of(columns.numbers[slots].tolist())
            slots = np.array([slot_of[number] for number in np.asarray(numbers).tolist()], np.int64)
        else:
            slots = slots[columns.has_vector[slots]]
            matrix = self._vectors.take(slots)
        return dict(zip(columns.entries[slots].tolist(), cosine(matrix, query.vector).tolist(), strict=True))

    def recent(self, query: Query) -> list[Ranked]:
        """The ``top_k`` records changed last, newest first; the query's filters count, its words and vector do not."""
        entries = self._columns.entries[: self._size]
        newest = self._numbers_by_entry(top(entries, entries, self._visible(query), query.top_k))
        return [Ranked(number, entry, 0.0, "recent", None, None) for entry, number in newest.items()]

    def _numbers_by_entry(self, slots: Integers) -> dict[int, int]:
        columns = self._columns
        return dict(zip(columns.entries[slots].tolist(), columns.numbers[slots].tolist(), strict=True))

    def _visible(self, query: Query) -> Mask:
        """Which slots pass the filters."""
        size, columns = self._size, self._columns
        states = columns.states[:size]
        visible: Mask = states >= RETRACTED if query.include_retracted else states == ACTIVE
        if not query.include_expired:
            visible &= columns.expires[:size] > query.now
        if query.kind is not None:
            visible &= columns.kinds[:size] == query.kind
        for slots, _ in self._facets.find(np.array(query.facets, np.uint64)):
            holds = np.zeros(size, np.bool_)
            holds[slots] = True
            visible &= holds
        return visible

    def _text_scores(self, query: Query) -> npt.NDArray[np.float64]:
        """The BM25 score of every slot; 0 where no word of the query is."""
        states, scores = self._columns.states, np.zeros(self._size)
        if not query.tokens or not self._tokens:
            return scores
        if self._norms is None:
            self._norms = bm25_norms(self._columns.lengths[: self._size], self._tokens / self._living)
        for slots, counts in self._postings.find(np.frombuffer(query.tokens, HASHES)):
            if self._size > self._living:
                living = states[slots] != FORGOTTEN
                slots, counts = slots[living], counts[living]
            # A slot comes once in a term's postings, and terms in the query's order: the sum has the same bits always.
            scores[slots] += bm25(counts, self._norms[slots], idf(self._living, len(slots)))
        return scores

    def _best_by_vector(self, query: Query, visible: Mask) -> Integers:
        if query.vector is None or not self.dims:
            return np.zeros(0, np.int64)
        entries = self._columns.entries[: self._size]
        wanted = visible & self._columns.has_vector[: self._size]
        if 4 * np.count_nonzero(wanted) > self._size:
            return top(self._vectors.scores(self._size, query.vector), entries, wanted, query.list_depth)
        slots = np.flatnonzero(wanted)  # few: gathering their rows is less than reading all
        scores = cosine(self._vectors.take(slots), query.vector)
        return slots[top(scores, entries[slots], np.ones(len(slots), np.bool_), query.list_depth)]

    def _best_in_blocks(self, query: Query, visible: Mask, outside: Outside) -> Integers:
        assert query.vector is not None
        slot_of, entries = self._slots(), self._columns.entries
        best, best_scores = np.zeros(0, np.int64), np.zeros(0, np.float32)
        for numbers, matrix in outside.blocks:
            slots = np.array([slot_of.get(number, -1) for number in numbers.tolist()], np.int64)
            scores = cosine(matrix, query.vector)
            least = scores.min()
            wanted = slots >= 0
            wanted[wanted] = visible[slots[wanted]]
            slots = np.concatenate([best, slots[wanted]])
            scores = np.concatenate([best_scores, scores[wanted]])
            chosen = top(scores, entries[slots], np.ones(len(slots), np.bool_), query.list_depth)
            best, best_scores = slots[chosen], scores[chosen]
            if len(best) == query.list_depth and best_scores.min() > least + outside.slack:
                break
        return best


class IndexCache:
    """Indexes by key, within a limit of bytes; the one used least recently leaves first.

    Args:
        limit: Bytes for all indexes together.

    >>> cache = IndexCache(limit=1_000_000)
    >>> cache.put("scope", ScopeIndex())
    >>> cache.get("scope") is not None, cache.get("other") is None
    (True, True)
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._indexes: OrderedDict[Hashable, tuple[ScopeIndex, int]] = OrderedDict()
        self._held = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all indexes, each as measured when it was last put."""
        return self._held

    def fits(self, records: int, dims: int | None) -> bool:
        """Whether the vectors of so many records are within the limit; else build with ``hold_vectors=False``."""
        return records * (dims or 0) * _FLOATS.itemsize <= self.limit

    def get(self, key: Hashable) -> ScopeIndex | None:
        """The index of a key, which now counts as used, or ``None``."""
        found = self._indexes.get(key)
        if found is None:
            return None
        self._indexes.move_to_end(key)
        return found[0]

    def put(self, key: Hashable, index: ScopeIndex) -> None:
        """Keeps an index; to be called again after ``apply``, so that its growth counts.

        One whose vectors no longer fit is not kept, so that the next read builds it without. Any other is, if need be
        alone and a little beyond the limit: building it for every read would cost more than its postings take.
        """
        self.discard(key)
        if not self.fits(index.records, index.dims):
            return
        self._indexes[key] = (index, index.nbytes)
        self._held += self._indexes[key][1]
        while self._held > self.limit and len(self._indexes) > 1:
            self.discard(next(iter(self._indexes)))

    def discard(self, key: Hashable) -> None:
        """Drops the index of a key, if there is one."""
        self._held -= self._indexes.pop(key, (None, 0))[1]

    def clear(self) -> None:
        """Drops all."""
        self._indexes.clear()
        self._held = 0
