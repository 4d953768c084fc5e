"""Scores and orders: unit vectors, exact cosine, BM25, the best of a list, and the fusion of two lists.

Owns every formula of recall, so that all stores compute the same bits from the same rows. Does not own which rows
there are (``index.py``) or what the hits carry (``recall.py``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

RRF_K = 60
BM25_K1 = 1.2
BM25_B = 0.75


class Fused(NamedTuple):
    """One entry of a fused ranking: its score and its place in each list, from 1, or ``None`` where it is not in it."""

    entry: int
    score: float
    vector_rank: int | None
    lexical_rank: int | None

    @property
    def match(self) -> str:
        """Which list found it: ``"vector"``, ``"lexical"``, or ``"hybrid"`` for both."""
        if self.vector_rank is None:
            return "lexical"
        return "vector" if self.lexical_rank is None else "hybrid"


def fuse(vector_list: Sequence[int], lexical_list: Sequence[int], top_k: int) -> list[Fused]:
    """Reciprocal rank fusion (Cormack, Clarke, Büttcher, SIGIR 2009): the sum of 1 / (60 + rank) over the lists.

    Args:
        vector_list: Entries, best first, none twice.
        lexical_list: The same by text.
        top_k: How many to return at most.

    Returns:
        The best, highest score first; of equal scores the newest, which is the greater entry.

    >>> [(hit.entry, hit.vector_rank, hit.lexical_rank) for hit in fuse([7, 5], [5, 9], 3)]
    [(5, 2, 1), (7, 1, None), (9, None, 2)]
    """
    vector_ranks = {entry: rank for rank, entry in enumerate(vector_list, 1)}
    lexical_ranks = {entry: rank for rank, entry in enumerate(lexical_list, 1)}
    scores: dict[int, float] = {}
    for ranks in (vector_ranks, lexical_ranks):
        for entry, rank in ranks.items():
            scores[entry] = scores.get(entry, 0.0) + 1.0 / (RRF_K + rank)
    best = sorted(scores, key=lambda entry: (scores[entry], entry), reverse=True)[:top_k]
    return [Fused(entry, scores[entry], vector_ranks.get(entry), lexical_ranks.get(entry)) for entry in best]


def idf(documents: int, holding: int) -> float:
    """The weight of a term that ``holding`` of ``documents`` records hold: ln(1 + (N - n + 0.5) / (n + 0.5)).

    Never negative, so that a common word cannot push a record down (Lucene's form of BM25's weight).

    >>> round(idf(10, 1), 3), round(idf(10, 10), 3)
    (1.992, 0.047)
    """
    return math.log1p((documents - holding + 0.5) / (holding + 0.5))


def bm25_norms(lengths: npt.ArrayLike, average: float) -> npt.NDArray[np.float64]:
    """What BM25 adds to a term's count below the line: k1 (1 - b + b length / average), k1 = 1.2, b = 0.75.

    Args:
        lengths: Tokens of each record.
        average: Their mean over the scope, above 0.

    >>> bm25_norms([5, 10], 5.0).round(2).tolist()
    [1.2, 2.1]
    """
    return BM25_K1 * (1.0 - BM25_B + BM25_B * np.asarray(lengths, np.float64) / average)


def bm25(counts: npt.ArrayLike, norms: npt.NDArray[np.float64], weight: float) -> npt.NDArray[np.float64]:
    """One term's share in each record's score (Robertson, Zaragoza 2009): idf · f (k1 + 1) / (f + norm).

    Args:
        counts: How often each record holds the term, at least once.
        norms: Of the same records, from :func:`bm25_norms`.
        weight: The term's :func:`idf`.

    >>> bm25([1, 3], bm25_norms([5, 5], 5.0), 2.0).round(3).tolist()
    [2.0, 3.143]
    """
    frequency = np.asarray(counts, np.float64)
    shares: npt.NDArray[np.float64] = frequency / (frequency + norms) * (weight * (BM25_K1 + 1.0))
    return shares


def unit(vectors: npt.ArrayLike) -> tuple[Vectors, Mask]:
    """Vectors of length 1, computed in float64 and kept as float32, and which rows could be so written.

    Args:
        vectors: Shape (n, dims), any real numbers.

    Returns:
        The rows, shape (n, dims), and a mask of n. A row that is zero or holds NaN or an infinity has no direction:
        its mask is False and its row is zero.

    >>> rows, embeddable = unit([[3.0, 4.0], [0.0, 0.0]])
    >>> np.square(rows).sum(axis=1).round(6).tolist(), embeddable.tolist()
    ([1.0, 0.0], [True, False])
    """
    given = np.ascontiguousarray(vectors, np.float64)
    if given.size == 0:
        return given.astype(np.float32), np.zeros(len(given), np.bool_)
    # Scaled by the greatest component first: squares of 1e200 or 1e-200 would leave float64.
    greatest = np.maximum.reduce(np.abs(given), axis=1)
    embeddable = (greatest > 0) & (greatest < np.inf)  # NaN is neither
    whole = np.count_nonzero(embeddable) == len(embeddable)
    if not whole:
        given, greatest = given.copy(), np.where(embeddable, greatest, 1.0)
        given[~embeddable] = 1.0  # stands in until the row is emptied below
    rows = given / greatest[:, None]
    rows /= np.sqrt(np.einsum("ij,ij->i", rows, rows))[:, None]
    units = rows.astype(np.float32)
    if not whole:
        units[~embeddable] = 0.0
    return units, embeddable


def cosine(matrix: Vectors, query: Vectors) -> Vectors:
    """The cosine of each unit row with a unit query; a row's bits are the same in whatever block it stands.

    Not BLAS (``matrix @ query``): it sums in an order that depends on the block's shape, and its threads wait for
    each other on a busy machine.

    Args:
        matrix: Shape (n, dims), rows of :func:`unit`.
        query: Shape (dims,), a row of :func:`unit`.

    >>> rows, _ = unit([[2, 0], [0, 3], [1, 1]])
    >>> [round(float(score), 3) for score in cosine(rows, rows[2])]
    [0.707, 0.707, 1.0]
    """
    scores: Vectors = np.einsum("ij,j->i", np.ascontiguousarray(matrix), np.ascontiguousarray(query))
    return scores


def top(scores: npt.NDArray[Any], entries: Integers, mask: Mask, depth: int) -> Integers:
    """The places of the best scores, best first; of equal scores the newest, which is the greater entry.

    Args:
        scores: Shape (n,), no NaN where ``mask`` is true.
        entries: Shape (n,), no two equal.
        mask: Shape (n,), the places that may be chosen.
        depth: How many to return at most, 1 or more.

    >>> scores, entries = np.array([1.0, 3.0, 1.0, 9.0]), np.array([1, 2, 3, 4])
    >>> top(scores, entries, np.array([True, True, True, False]), 2).tolist()
    [1, 2]
    """
    places = np.flatnonzero(mask)
    values = scores[places]
    if len(places) > depth:
        cut = np.partition(values, len(values) - depth)[len(values) - depth]
        above, level = values > cut, np.flatnonzero(values == cut)
        wanted = depth - int(np.count_nonzero(above))
        if len(level) > wanted:
            level = level[np.argpartition(entries[places[level]], len(level) - wanted)[len(level) - wanted :]]
        chosen = np.concatenate([np.flatnonzero(above), level])
        places, values = places[chosen], values[chosen]
    return places[np.lexsort((entries[places], values))[::-1]]
