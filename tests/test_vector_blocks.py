"""Vectors in blocks are those of one plain matrix, whatever happens to them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmem_core import vector_blocks
from vmem_core.ranking import Vectors, cosine, unit
from vmem_core.vector_blocks import VectorBlocks

DIMS = 5
ROWS = 4
STEPS = st.lists(st.tuples(st.sampled_from(["append", "keep"]), st.integers(0, 11), st.integers(0, 2**32)), max_size=12)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_blocks, "BLOCK_ROWS", ROWS)


def made(count: int, seed: int) -> Vectors:
    return unit(np.random.default_rng(seed).standard_normal((count, DIMS)))[0]


@given(STEPS)
def test_blocks_hold_what_one_matrix_holds_and_score_it_with_the_same_bits(steps: list[tuple[str, int, int]]) -> None:
    blocks, matrix, query = VectorBlocks(DIMS), np.zeros((0, DIMS), np.float32), made(1, 0)[0]
    for step, count, seed in steps:
        chosen = np.random.default_rng(seed)
        if step == "append":
            slots = np.flatnonzero(chosen.random(count) < 0.7)
            rows = np.zeros((count, DIMS), np.float32)
            rows[slots] = made(len(slots), seed)
            blocks.reserve(len(matrix) + count)
            blocks.put(len(matrix) + slots, rows[slots])
            matrix = np.concatenate([matrix, rows])
        else:
            kept = np.flatnonzero(chosen.random(len(matrix)) < 0.6)
            blocks.keep(kept)
            matrix = matrix[kept]
        anywhere = chosen.permutation(len(matrix))
        assert blocks.take(anywhere).tobytes() == matrix[anywhere].tobytes()
        assert blocks.scores(len(matrix), query).tobytes() == cosine(matrix, query).tobytes()


def test_a_full_block_is_not_moved_when_more_slots_are_wanted() -> None:
    blocks = VectorBlocks(DIMS)
    blocks.reserve(ROWS)
    blocks.put(np.arange(ROWS), made(ROWS, 1))
    (first,) = blocks._blocks
    blocks.reserve(10 * ROWS)
    assert blocks._blocks[0] is first
    assert blocks.nbytes == 10 * ROWS * DIMS * 4


def test_what_is_not_kept_is_in_no_block() -> None:
    blocks = VectorBlocks(DIMS)
    blocks.reserve(2 * ROWS + 1)
    rows = made(2 * ROWS + 1, 1)
    blocks.put(np.arange(2 * ROWS + 1), rows)
    blocks.keep(np.array([0, ROWS]))
    left = b"".join(block.tobytes() for block in blocks._blocks)
    assert [place for place, row in enumerate(rows) if row.tobytes() in left] == [0, ROWS]


def test_without_dims_nothing_is_held() -> None:
    blocks = VectorBlocks(0)
    blocks.reserve(100)
    blocks.put(np.zeros(0, np.int64), np.zeros((0, 0), np.float32))
    blocks.keep(np.arange(50))
    assert blocks.nbytes == 0
