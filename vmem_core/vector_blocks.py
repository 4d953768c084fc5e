"""The vectors of a search index, in blocks.

Owns where the vector of a slot stands in memory. Does not own slots, which record each is of, or which of them have a
vector (``index.py``), nor the formula of the scores (``ranking.py``). One matrix that grows is in memory twice while
it does, and so is one that is put together from rows: a block is neither, once it is full.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vmem_core.ranking import Integers, Vectors, cosine

BLOCK_ROWS = 8_192  # 12 MiB at 384 dimensions


class VectorBlocks:
    """The unit vectors of slots 0, 1, 2, and so on; a slot that was given none holds zeros.

    Args:
        dims: Size of the vectors, 0 for none.

    >>> vectors = VectorBlocks(2)
    >>> vectors.reserve(3)
    >>> vectors.put(np.array([0, 2]), np.array([[1, 0], [0, 1]], np.float32))
    >>> vectors.scores(3, np.array([0.75, 0.5], np.float32)).tolist()
    [0.75, 0.0, 0.5]
    """

    __slots__ = ("_blocks", "_dims")

    def __init__(self, dims: int) -> None:
        self._dims = dims
        self._blocks: list[Vectors] = []

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks, with the room to grow in the last one."""
        return sum(block.nbytes for block in self._blocks)

    def reserve(self, slots: int) -> None:
        """Make room for so many slots in all, and some more in a last block that is not full."""
        if not self._dims:
            return
        for number in range(max(0, len(self._blocks) - 1), -(-slots // BLOCK_ROWS)):
            needed = min(BLOCK_ROWS, slots - number * BLOCK_ROWS)
            if number == len(self._blocks):
                self._blocks.append(self._room(0))
            if needed > len(self._blocks[number]):
                grown = self._room(min(BLOCK_ROWS, needed + needed // 8 + 8))
                grown[: len(self._blocks[number])] = self._blocks[number]
                self._blocks[number] = grown

    def _room(self, rows: int) -> Vectors:
        return np.zeros((rows, self._dims), np.float32)  # pages that are not written take no memory yet

    def put(self, slots: Integers, rows: Vectors) -> None:
        """Write the vectors of slots that there is room for; shapes (n,) and (n, dims)."""
        for number, which in self._by_block(slots):
            self._blocks[number][slots[which] - number * BLOCK_ROWS] = rows[which]

    def take(self, slots: Integers) -> Vectors:
        """The vectors of slots, shape (len(slots), dims), in their order."""
        rows = np.empty((len(slots), self._dims), np.float32)
        for number, which in self._by_block(slots):
            rows[which] = self._blocks[number][slots[which] - number * BLOCK_ROWS]
        return rows

    def _by_block(self, slots: Integers) -> Iterator[tuple[int, slice | Integers]]:
        """Which of the slots stand in each block."""
        if not len(slots):
            return
        blocks = slots // BLOCK_ROWS
        first, last = int(blocks.min()), int(blocks.max())
        if first == last:
            yield first, slice(None)
            return
        for number in range(first, last + 1):  # not np.unique, whose first call imports a module of 20 ms
            which = np.flatnonzero(blocks == number)
            if len(which):
                yield number, which

    def scores(self, slots: int, query: Vectors) -> Vectors:
        """The cosine of each of the first slots with a unit query, shape (slots,)."""
        scores = np.empty(slots, np.float32)
        for number, begin in enumerate(range(0, slots, BLOCK_ROWS)):
            end = min(slots, begin + BLOCK_ROWS)
            scores[begin:end] = cosine(self._blocks[number][: end - begin], query)
        return scores

    def keep(self, slots: Integers) -> None:
        """Keep the vectors of these slots, ascending, as the first ones; no other is left in memory."""
        if not self._dims:
            return
        for begin in range(0, len(slots), BLOCK_ROWS):  # each goes down or stays, so none is written over unread
            part = slots[begin : begin + BLOCK_ROWS]
            self.put(np.arange(begin, begin + len(part)), self.take(part))
        full, rest = divmod(len(slots), BLOCK_ROWS)
        self._blocks = self._blocks[:full] + ([self._blocks[full][:rest].copy()] if rest else [])
