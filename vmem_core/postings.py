"""Which slots of a search index hold a hash, and how often.

Owns the postings: sorted arrays for most, a dictionary for what was added since. Does not own slots, which living
record each stands for (``index.py``), or how texts become hashes (``tokens.py``).
"""

from __future__ import annotations

from array import array
from collections import Counter

import numpy as np
import numpy.typing as npt

from vmem_core.ranking import Integers, Mask

HASHES = np.dtype("<u8")
_COUNT_BITS = 32  # a posting in the tail: slot << 32 | count
_TAIL_LEAST = 4096  # of a shorter tail it is not worth to sort it in
_TAIL_KEY_BYTES = 200  # measured on CPython 3.11: a key of a tail with its array

Hashes = npt.NDArray[np.uint64]
Slots = npt.NDArray[np.int32]
Counts = npt.NDArray[np.uint32]
_NO_POSTINGS: tuple[Hashes, Slots, Counts] = (np.zeros(0, np.uint64), np.zeros(0, np.int32), np.zeros(0, np.uint32))


class Postings:
    """Which slots hold a hash, and how often: sorted arrays for most, a dictionary for those added since."""

    __slots__ = ("_counts", "_hashes", "_slots", "_starts", "_tail", "_tail_size")

    def __init__(self) -> None:
        self._hashes = np.zeros(0, np.uint64)  # sorted, unique
        self._starts = np.zeros(1, np.int64)  # where each hash's postings begin; the last is where all end
        self._slots = np.zeros(0, np.int32)
        self._counts = np.zeros(0, np.uint32)
        self._tail: dict[int, array[int]] = {}
        self._tail_size = 0

    @property
    def nbytes(self) -> int:
        arrays = self._hashes.nbytes + self._starts.nbytes + self._slots.nbytes + self._counts.nbytes
        return arrays + _TAIL_KEY_BYTES * len(self._tail) + 8 * self._tail_size

    def add(self, hashes: Hashes, slots: Slots) -> None:
        """Takes one pair an occurrence, in order of slots; a slot comes in one call only."""
        if len(hashes) > _TAIL_LEAST:
            self._sort_in(hashes, slots, np.ones(len(hashes), np.uint32))
            return
        for (key, slot), count in Counter(zip(hashes.tolist(), slots.tolist(), strict=True)).items():
            self._tail.setdefault(key, array("Q")).append(slot << _COUNT_BITS | count)
            self._tail_size += 1
        if self._tail_size > max(_TAIL_LEAST, len(self._slots) // 8):
            self._sort_in(*_NO_POSTINGS)

    def find(self, hashes: Hashes) -> list[tuple[Slots, Counts]]:
        """The slots and counts of each hash, those of dead slots too; within a hash no slot comes twice."""
        places = np.searchsorted(self._hashes, hashes).tolist()
        return [self._find(key, place) for key, place in zip(hashes.tolist(), places, strict=True)]

    def _find(self, key: int, place: int) -> tuple[Slots, Counts]:
        begin = end = 0
        if place < len(self._hashes) and int(self._hashes[place]) == key:
            begin, end = self._starts[place : place + 2].tolist()
        slots, counts = self._slots[begin:end], self._counts[begin:end]
        tail = self._tail.get(key)
        if tail is None:
            return slots, counts
        late_slots, late_counts = _unpack(tail)
        return np.concatenate([slots, late_slots]), np.concatenate([counts, late_counts])

    def keep(self, new_slots: Slots) -> None:
        """Gives every slot its new number, ``new_slots[slot]``; those with -1 leave."""
        self._sort_in(*_NO_POSTINGS, new_slots)

    def _sort_in(self, hashes: Hashes, slots: Slots, counts: Counts, new_slots: Slots | None = None) -> None:
        """Rebuilds the sorted arrays from themselves, the tail and what is given."""
        tail_hashes, tail_slots, tail_counts = self._unpacked_tail()
        hashes = np.concatenate([np.repeat(self._hashes, np.diff(self._starts)), tail_hashes, hashes])
        slots = np.concatenate([self._slots, tail_slots, slots])
        counts = np.concatenate([self._counts, tail_counts, counts])
        self._tail, self._tail_size = {}, 0
        if new_slots is not None:
            slots = new_slots[slots]
            living = slots >= 0
            hashes, slots, counts = hashes[living], slots[living], counts[living]
        order = np.argsort(hashes, kind="stable")  # stable: occurrences in one slot stay neighbours
        hashes, slots, counts = hashes[order], slots[order], counts[order]
        first = _starts_of_runs((hashes[1:] != hashes[:-1]) | (slots[1:] != slots[:-1]), len(hashes))
        self._counts = np.add.reduceat(counts, first, dtype=np.uint32) if len(first) else counts
        self._slots, hashes = slots[first], hashes[first]
        first = _starts_of_runs(hashes[1:] != hashes[:-1], len(hashes))
        self._hashes, self._starts = hashes[first], np.append(first, len(hashes))

    def _unpacked_tail(self) -> tuple[Hashes, Slots, Counts]:
        keys = np.fromiter(self._tail, np.uint64, len(self._tail))
        slots, counts = _unpack(b"".join(self._tail.values()))
        return np.repeat(keys, [len(packed) for packed in self._tail.values()]), slots, counts


def _unpack(packed: array[int] | bytes) -> tuple[Slots, Counts]:
    pairs = np.frombuffer(packed, np.uint64)  # no reference to it may leave: an array that is looked at cannot grow
    return (pairs >> np.uint64(_COUNT_BITS)).astype(np.int32), pairs.astype(np.uint32)


def _starts_of_runs(changes: Mask, length: int) -> Integers:
    """Where runs begin among ``length`` items, given for each item but the first whether it differs from the last."""
    return np.flatnonzero(np.concatenate([np.ones(min(length, 1), np.bool_), changes]))


def post(postings: Postings, blobs: list[bytes], first_slot: int) -> list[int]:
    """Adds each blob's hashes under a slot of its own, from ``first_slot`` on; returns how many each had."""
    lengths = [len(blob) // HASHES.itemsize for blob in blobs]
    slots = np.repeat(np.arange(first_slot, first_slot + len(blobs), dtype=np.int32), lengths)
    postings.add(np.frombuffer(b"".join(blobs), HASHES), slots)
    return lengths
