"""Formulas of recall: unit vectors, cosine, BM25, the best of a list, fusion."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from vmem_core.ranking import bm25, bm25_norms, cosine, fuse, fuse_scores, idf, top, unit

COMPONENTS = st.floats(-1e308, 1e308, allow_subnormal=False)
MATRICES = hnp.arrays(np.float64, hnp.array_shapes(min_dims=2, max_dims=2, max_side=40), elements=COMPONENTS)


# --------------------------------------------------------------------------------------------------- vectors


@pytest.mark.parametrize("row", [[0.0, 0.0], [-0.0, 0.0], [math.nan, 1.0], [math.inf, 1.0], [1.0, -math.inf]])
def test_a_vector_without_a_direction_is_not_embeddable_and_leaves_the_others_as_they_are(row: list[float]) -> None:
    alone, _ = unit([[3.0, 4.0]])
    rows, embeddable = unit([row, [3.0, 4.0]])
    assert embeddable.tolist() == [False, True]
    assert rows[0].tolist() == [0.0, 0.0]
    assert rows[1].tobytes() == alone[0].tobytes()


@pytest.mark.parametrize("scale", [1e-320, 1e-200, 1.0, 1e200, 1e308])
def test_a_vector_of_any_length_becomes_the_same_direction(scale: float) -> None:
    rows, embeddable = unit([[scale, scale]])
    assert embeddable.all()
    assert rows[0] == pytest.approx([math.sqrt(0.5)] * 2)


def test_no_vectors_are_no_rows() -> None:
    rows, embeddable = unit(np.zeros((0, 3)))
    assert rows.shape == (0, 3)
    assert len(embeddable) == 0


@given(MATRICES)
def test_a_unit_row_has_length_one_and_the_same_bits_alone(matrix: np.ndarray) -> None:
    rows, embeddable = unit(matrix)
    assert rows.dtype == np.float32
    for row, given_row, ok in zip(rows, matrix, embeddable, strict=True):
        assert ok == bool(np.any(given_row))
        assert np.linalg.norm(row.astype(np.float64)) == pytest.approx(float(ok), abs=1e-6)
        assert unit([given_row])[0][0].tobytes() == row.tobytes()


@given(st.integers(1, 90), st.integers(1, 400), st.integers(0, 2**32), st.data())
def test_a_score_has_the_same_bits_in_any_block(n: int, dims: int, seed: int, data: st.DataObject) -> None:
    chance = np.random.default_rng(seed)
    rows, _ = unit(chance.standard_normal((n, dims)))
    query = unit(chance.standard_normal((1, dims)))[0][0]
    whole = cosine(rows, query)
    start = data.draw(st.integers(0, n - 1))
    end = data.draw(st.integers(start + 1, n))
    assert cosine(rows[start:end], query).tobytes() == whole[start:end].tobytes()
    order = chance.permutation(n)
    assert cosine(rows[order], query).tobytes() == whole[order].tobytes()
    assert cosine(np.asfortranarray(rows), query).tobytes() == whole.tobytes()
    unaligned = np.frombuffer(b"\0" + rows.tobytes(), np.uint8)[1:].view(np.float32).reshape(n, dims)
    assert cosine(unaligned, query).tobytes() == whole.tobytes()


def test_a_cosine_is_what_the_formula_says() -> None:
    rows, _ = unit([[1, 0], [1, 1], [-1, 0]])
    assert cosine(rows, rows[0]) == pytest.approx([1.0, math.sqrt(0.5), -1.0])


# ------------------------------------------------------------------------------------------------------ words


def test_bm25_is_what_the_formula_says() -> None:
    # By hand: N = 3, n = 1, f = 2, length 4, average 3.
    weight = math.log(1 + (3 - 1 + 0.5) / (1 + 0.5))
    expected = weight * 2 * 1.9 / (2 + 0.9 * (0.6 + 0.4 * 4 / 3))
    assert bm25([2], bm25_norms([4], 3.0), idf(3, 1))[0] == pytest.approx(expected, rel=1e-14)


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_no_word_counts_against_a_record(others: int, holding: int) -> None:
    assert idf(others + holding, holding) > 0


# ------------------------------------------------------------------------------------------- the best of a list


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=60), st.integers(1, 70), st.randoms())
def test_the_best_are_those_of_a_full_sort(rows: list[tuple[int, bool]], depth: int, chance: object) -> None:
    entries = list(range(100, 100 + len(rows)))
    chance.shuffle(entries)  # type: ignore[attr-defined]
    scores = np.array([score / 2 for score, _ in rows], np.float64)
    mask = np.array([wanted for _, wanted in rows], np.bool_)
    expected = sorted(np.flatnonzero(mask).tolist(), key=lambda place: (-scores[place], -entries[place]))
    assert top(scores, np.array(entries, np.int64), mask, depth).tolist() == expected[:depth]


@given(st.integers(1, 2_000), st.integers(1, 40), st.sampled_from([2, 9, 10**6]), st.booleans(), st.integers(0, 2**32))
def test_of_many_the_best_are_those_of_a_full_sort(count: int, depth: int, kinds: int, every: bool, seed: int) -> None:
    chance = np.random.default_rng(seed)
    scores = chance.integers(0, kinds, count).astype(np.float32)  # of few kinds: many are equal at the cut
    entries, mask = chance.permutation(count), chance.random(count) < (2 if every else 0.7)
    expected = [place for place in np.lexsort((entries, scores))[::-1].tolist() if mask[place]]
    assert top(scores, entries, mask, depth).tolist() == expected[:depth]


# ----------------------------------------------------------------------------------------------------- fusion


def test_a_record_in_both_lists_comes_before_one_that_leads_a_single_list() -> None:
    hits = fuse([1, 2], [3, 2], 3)
    assert [hit.entry for hit in hits] == [2, 3, 1]
    assert hits[0] == (2, 1 / 62 + 1 / 62, 2, 2)
    assert hits[1] == (3, 1 / 61, None, 1)


def test_of_equal_scores_the_newest_comes_first() -> None:
    assert [hit.entry for hit in fuse([5, 9, 7], [9, 5, 8], 9)] == [9, 5, 8, 7]


@given(st.lists(st.integers(0, 30), unique=True), st.lists(st.integers(0, 30), unique=True), st.integers(0, 70))
def test_fusion_does_not_care_which_list_is_which(one: list[int], other: list[int], top_k: int) -> None:
    hits = fuse(one, other, top_k)
    assert [(hit.entry, hit.score) for hit in hits] == [(hit.entry, hit.score) for hit in fuse(other, one, top_k)]
    assert len(hits) == min(top_k, len({*one, *other}))
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


def test_two_empty_lists_give_nothing() -> None:
    assert fuse([], [], 5) == []


# ------------------------------------------------------------------------------------------------ sums of scores


def test_a_sum_of_scores_is_what_the_formula_says() -> None:
    hits = fuse_scores([1, 2], [3, 2], {1: 0.9, 2: 0.7, 3: 0.5}, {1: 0.0, 2: 2.0, 3: 8.0}, 3)
    assert [(hit.entry, hit.score) for hit in hits] == [
        (3, pytest.approx(0.6)),  # the best text, the least near
        (1, pytest.approx(0.4)),  # the nearest, no word
        (2, pytest.approx(0.4 * 0.5 + 0.6 * 0.25)),
    ]
    assert [(hit.vector_rank, hit.lexical_rank) for hit in hits] == [(None, 1), (1, None), (2, 2)]


def test_a_clear_best_by_words_stays_first_whatever_a_crowd_of_near_equals_says() -> None:
    near = {entry: 0.80 + entry / 1000 for entry in range(10)}
    words = dict.fromkeys(range(10), 1.0) | {0: 9.0}
    by_vector, by_words = sorted(near, key=near.__getitem__, reverse=True), sorted(words, key=lambda e: (-words[e], -e))
    assert fuse_scores(by_vector, by_words, near, words, 1)[0].entry == 0
    assert fuse(by_vector, by_words, 1)[0].entry != 0


def test_a_record_without_a_vector_counts_as_the_least_near_and_equal_ones_as_near() -> None:
    assert [hit.entry for hit in fuse_scores([2], [1, 2], {2: 0.3}, {1: 1.0, 2: 1.0}, 2)] == [2, 1]
    assert [hit.score for hit in fuse_scores([2, 1], [], {1: 0.3, 2: 0.3}, {1: 0.0, 2: 0.0}, 2)] == [0.4, 0.4]


@given(
    st.dictionaries(st.integers(0, 20), st.tuples(st.floats(-1, 1), st.floats(0, 50)), max_size=20), st.integers(1, 30)
)
def test_sums_of_scores_are_between_0_and_1_and_in_order(rows: dict[int, tuple[float, float]], top_k: int) -> None:
    near, said = {e: v for e, (v, _) in rows.items()}, {e: t for e, (_, t) in rows.items()}
    hits = fuse_scores(list(near), [e for e in said if said[e] > 0], near, said, top_k)
    assert len(hits) == min(top_k, len(rows))
    assert all(-1e-9 <= hit.score <= 1 + 1e-9 for hit in hits)
    assert [(hit.score, hit.entry) for hit in hits] == sorted(((h.score, h.entry) for h in hits), reverse=True)


def test_two_empty_lists_of_scores_give_nothing() -> None:
    assert fuse_scores([], [], {}, {}, 5) == []


# ------------------------------------------------------------------------------------- rows of length 1 already


@given(st.integers(1, 900), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_rows_that_were_made_unit_stay_bit_for_bit_when_they_come_again(dims: int, rows: int, seed: int) -> None:
    once, _ = unit(np.random.default_rng(seed).standard_normal((rows, dims)))
    again, embeddable = unit(once)
    assert again.tobytes() == once.tobytes()
    assert embeddable.all()


def test_a_row_that_is_not_quite_of_length_1_is_brought_to_it() -> None:
    nearly = np.array([[0.6, 0.8], [0.6, 0.801]], np.float32)
    rows, _ = unit(nearly)
    assert np.square(rows.astype(np.float64)).sum(axis=1) == pytest.approx([1.0, 1.0], abs=1e-7)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_float32_rows_without_a_direction_are_found_among_unit_ones(wrong: float) -> None:
    rows, embeddable = unit(np.array([[1.0, 0.0], [wrong, 0.0], [0.0, 0.0]], np.float32))
    assert embeddable.tolist() == [True, False, False]
    assert rows.tolist() == [[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]
