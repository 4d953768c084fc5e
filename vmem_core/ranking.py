"""Scores and orders: unit vectors, exact cosine, BM25, the best of a list, and the fusion of two lists.

Owns every formula of recall, so that all stores compute the same bits from the same rows. Does not own which rows
there are (``index.py``) or what the hits carry (``recall.py``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

RRF_K = 60
# For short texts, where a word said twice means little more than once and length says little: the constants that
# Trotman, Jia, Crane (SIGIR eCom 2014) and Anserini's passage runs settled on. On LoCoMo they find 0.654 of the answers
# within ten, against 0.644 with 1.2 and 0.75; see benchmarks/README.md.
BM25_K1 = 0.9
BM25_B = 0.4
_STRIP = 64  # values of which the greatest is found first
_UNIT_SLACK = 1e-6  # of a squared length: what float32 leaves of a row that was normalised
VECTOR_SHARE = 0.4  # of a vector's score in a sum with a text's; see fuse_scores()


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


def fuse_scores(
    vector_list: Sequence[int],
    lexical_list: Sequence[int],
    vector_scores: Mapping[int, float],
    lexical_scores: Mapping[int, float],
    top_k: int,
) -> list[Fused]:
    """A convex sum of both scores, each brought to 0..1 (Bruch, Gai, Ingber, TOIS 42, 2023): 0.6 text, 0.4 vector.

    Unlike ranks, scores tell a clear best from a crowd of equals, so that a weak embedder does less harm. A text's
    score is divided by the best one's; of a vector's the least among all entries is taken away first, since cosines of
    real embedders fill a narrow band. An entry of one list only counts with its true score by the other measure.

    Args:
        vector_list: Entries, best first, none twice.
        lexical_list: The same by text.
        vector_scores: The cosine of every entry of both lists that has a vector.
        lexical_scores: The BM25 score of every entry of both lists, 0 or more.
        top_k: How many to return at most.

    Returns:
        The best, highest score first; of equal scores the newest, which is the greater entry.

    >>> hits = fuse_scores([7, 5], [5, 9], {7: 0.9, 5: 0.8, 9: 0.4}, {7: 0.0, 5: 3.0, 9: 1.5}, 3)
    >>> [(hit.entry, round(hit.score, 2), hit.match) for hit in hits]
    [(5, 0.92, 'hybrid'), (7, 0.4, 'vector'), (9, 0.3, 'lexical')]
    """
    vector_ranks = {entry: rank for rank, entry in enumerate(vector_list, 1)}
    lexical_ranks = {entry: rank for rank, entry in enumerate(lexical_list, 1)}
    least, greatest = min(vector_scores.values(), default=0.0), max(vector_scores.values(), default=0.0)
    band, best_text = greatest - least, max(lexical_scores.values(), default=0.0)

    def score(entry: int) -> float:
        near = (
            (vector_scores[entry] - least) / band if band and entry in vector_scores else float(entry in vector_ranks)
        )
        said = lexical_scores[entry] / best_text if best_text else 0.0
        return VECTOR_SHARE * near + (1.0 - VECTOR_SHARE) * said

    scores = {entry: score(entry) for entry in vector_ranks | lexical_ranks}
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
    """What BM25 adds to a term's count below the line: k1 (1 - b + b length / average), k1 = 0.9, b = 0.4.

    Args:
        lengths: Tokens of each record.
        average: Their mean over the scope, above 0.

    >>> bm25_norms([5, 10], 5.0).round(2).tolist()
    [0.9, 1.26]
    """
    return BM25_K1 * (1.0 - BM25_B + BM25_B * np.asarray(lengths, np.float64) / average)


def bm25(counts: npt.ArrayLike, norms: npt.NDArray[np.float64], weight: float) -> npt.NDArray[np.float64]:
    """One term's share in each record's score (Robertson, Zaragoza 2009): idf · f (k1 + 1) / (f + norm).

    Args:
        counts: How often each record holds the term, at least once.
        norms: Of the same records, from :func:`bm25_norms`.
        weight: The term's :func:`idf`.

    >>> bm25([1, 3], bm25_norms([5, 5], 5.0), 2.0).round(3).tolist()
    [2.0, 2.923]
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
        its mask is False and its row is zero. Float32 rows that all have length 1 but for rounding stay as they are.

    >>> rows, embeddable = unit([[3.0, 4.0], [0.0, 0.0]])
    >>> np.square(rows).sum(axis=1).round(6).tolist(), embeddable.tolist()
    ([1.0, 0.0], [True, False])
    """
    taken = np.asarray(vectors)
    if taken.dtype == np.float32 and taken.size and _are_unit(taken):  # of most embedders: look before working
        return np.ascontiguousarray(taken), np.ones(len(taken), np.bool_)
    given = np.ascontiguousarray(taken, np.float64)
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


def _are_unit(rows: Vectors) -> bool:
    """Whether float32 rows all have length 1 but for rounding; NaN has not."""
    if len(rows) == 1:  # einsum's set-up alone costs ten times as much as this
        row = rows[0].astype(np.float64)
        return abs(float(row @ row) - 1.0) <= _UNIT_SLACK
    squares = np.einsum("ij,ij->i", rows, rows, dtype=np.float64, casting="safe")
    return bool(np.abs(squares - 1.0).max() <= _UNIT_SLACK)


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


def _candidates(values: npt.NDArray[Any], depth: int) -> Integers:
    """The places of all values that can be among the ``depth`` best, those of equal values too.

    As many strips have a greatest value that is no less than the ``depth``-th greatest of them, so no value below it is
    among the best. To look at each value once is much less than to partition all.
    """
    strips = len(values) // _STRIP
    greatest = values[: strips * _STRIP].reshape(strips, _STRIP).max(axis=1)
    return np.flatnonzero(values >= np.partition(greatest, strips - depth)[strips - depth])


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
    values = scores if len(places) == len(scores) else scores[places]
    if len(values) >= 2 * depth * _STRIP:
        chosen = _candidates(values, depth)
        places, values = places[chosen], values[chosen]
    if len(places) > depth:
        cut = np.partition(values, len(values) - depth)[len(values) - depth]
        above, level = values > cut, np.flatnonzero(values == cut)
        wanted = depth - int(np.count_nonzero(above))
        if len(level) > wanted:
            level = level[np.argpartition(entries[places[level]], len(level) - wanted)[len(level) - wanted :]]
        chosen = np.concatenate([np.flatnonzero(above), level])
        places, values = places[chosen], values[chosen]
    return places[np.lexsort((entries[places], values))[::-1]]
