"""A scope's index: what it finds, what it hides, and that following the feed equals building anew."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vmem_core import index as index_module
from vmem_core import postings as postings_module
from vmem_core.index import ACTIVE, FORGOTTEN, RETRACTED, IndexCache, Outside, Query, Ranked, Row, ScopeIndex
from vmem_core.ranking import unit
from vmem_core.tokens import facet_hash, facets, query_tokens, token_hashes, tokenize

DIMS = 5
SLACK = 0.3
WORDS = ["tea", "coffee", "rain", "sun", "咖啡", "the"]


def row(
    number: int,
    text: str = "",
    *,
    entry: int | None = None,
    state: int = ACTIVE,
    kind: int = 0,
    expires_at: int | None = None,
    metadata: Mapping[str, object] | None = None,
) -> Row:
    """A record as the store would feed it."""
    if state == FORGOTTEN:
        return Row(number, 0, FORGOTTEN, 0, None, b"", b"")
    place = number if entry is None else entry
    return Row(number, place, state, kind, expires_at, token_hashes(tokenize(text)), facets(metadata or {}))


def ask(text: str = "", vector: Iterable[float] | None = None, *, top_k: int = 10, **filters: object) -> Query:
    """A query at the instant 1,000."""
    direction = None if vector is None else unit([list(vector)])[0][0]
    query = Query(token_hashes(query_tokens(text)), direction, top_k, now=1_000)
    return replace(query, **filters)  # type: ignore[arg-type]


def built(rows: Iterable[Row], vectors: Mapping[int, Iterable[float]] | None = None) -> ScopeIndex:
    """An index built at once."""
    index = ScopeIndex(DIMS if vectors else None)
    index.apply(list(rows), {number: blob(vector) for number, vector in (vectors or {}).items()})
    return index


def blob(vector: Iterable[float]) -> bytes:
    """A vector as a store keeps it."""
    return unit([list(vector)])[0].tobytes()


def numbers(hits: list[Ranked]) -> list[int]:
    """Which records were found."""
    return [hit.number for hit in hits]


def axis(place: int) -> list[float]:
    """A vector along one axis."""
    return [float(n == place) for n in range(DIMS)]


# ------------------------------------------------------------------------------------------------- what is found


def test_a_query_for_coffee_in_chinese_finds_the_sentence() -> None:
    index = built([row(1, "我喜欢喝咖啡"), row(2, "今天下雨")])
    for query in ["咖", "咖啡", "喜欢喝咖啡"]:
        assert numbers(index.search(ask(query))) == [1]


@pytest.mark.parametrize("query", ["pre-edit", "GB/s", "C++"])
def test_a_query_with_signs_finds_its_record(query: str) -> None:
    assert numbers(built([row(1, "pre-edit check, GB/s and C++"), row(2, "tea")]).search(ask(query))) == [1]


def test_the_rarer_word_and_the_shorter_text_rank_first() -> None:
    index = built([row(1, "tea rain"), row(2, "tea"), row(3, "tea with a long story behind it"), row(4, "sun")])
    assert numbers(index.search(ask("tea rain"))) == [1, 2, 3]


def test_both_lists_are_fused_and_a_hit_names_its_ranks() -> None:
    index = built([row(1, "tea"), row(2, "rain"), row(3, "sun")], {1: axis(0), 2: axis(1), 3: [0.9, 0.1, 0, 0, 0]})
    hits = index.search(ask("rain", axis(0)))
    assert hits[0] == Ranked(2, 2, 1 / 63 + 1 / 61, "hybrid", 3, 1)
    assert hits[1] == Ranked(1, 1, 1 / 61, "vector", 1, None)
    assert hits[2] == Ranked(3, 3, 1 / 62, "vector", 2, None)


def test_without_a_query_vector_or_without_dims_text_decides_alone() -> None:
    vectors = {1: axis(0), 2: axis(1)}
    rows = [row(1, "tea"), row(2, "rain")]
    hits = [Ranked(2, 2, 1 / 61, "lexical", None, 1)]
    assert built(rows, vectors).search(ask("rain")) == hits
    assert built(rows).search(ask("rain", axis(0))) == hits


def test_without_words_the_vector_decides_alone() -> None:
    index = built([row(1, "tea"), row(2, "rain")], {1: axis(0), 2: axis(1)})
    assert numbers(index.search(ask("", axis(1)))) == [2, 1]


def test_a_record_without_a_vector_is_found_by_text_and_never_by_vector() -> None:
    index = built([row(1, "tea"), row(2, "rain")], {1: axis(0)})
    assert numbers(index.search(ask("", axis(3)))) == [1]
    assert [hit.match for hit in index.search(ask("rain", axis(3)))] == ["lexical", "vector"]


def test_equal_records_come_newest_first() -> None:
    index = built([row(n, "tea", entry=entry) for n, entry in [(1, 30), (2, 10), (3, 20)]])
    assert numbers(index.search(ask("tea"))) == [1, 3, 2]
    assert numbers(index.search(ask("tea", top_k=2))) == [1, 3]
    many = built([row(n, "tea") for n in range(200)])
    assert numbers(many.search(ask("tea", top_k=3))) == [199, 198, 197]


def test_a_list_is_as_deep_as_asked() -> None:
    index = built([row(n, "tea") for n in range(100)])
    assert len(index.search(ask("tea", top_k=50))) == 50
    assert len(index.search(ask("tea", top_k=50, depth=7))) == 7
    assert ask(top_k=3).list_depth == 10
    assert ask(top_k=3, fusion="scores").list_depth == 20
    assert ask(top_k=30).list_depth == 30
    assert ask(top_k=30, fusion="scores").list_depth == 60


def test_recent_gives_the_newest_entries_within_the_filters() -> None:
    index = built([row(1, entry=9), row(2, entry=8, kind=1), row(3, entry=7), row(4, entry=10, state=RETRACTED)])
    assert index.recent(ask("tea", top_k=2)) == [Ranked(1, 9, 0.0, "recent", None, None), index.recent(ask())[1]]
    assert numbers(index.recent(ask())) == [1, 2, 3]
    assert numbers(index.recent(ask(kind=1))) == [2]
    assert numbers(index.recent(ask(include_retracted=True))) == [4, 1, 2, 3]


def test_an_empty_index_answers_everything_with_nothing() -> None:
    index = ScopeIndex(DIMS)
    assert index.search(ask("tea", axis(0))) == index.recent(ask()) == []
    index.apply([], {})
    index.apply([row(1, state=FORGOTTEN)], {})
    block = (np.array([4]), unit([axis(0)])[0])
    assert index.search(ask("tea", axis(0)), Outside([block], lambda numbers: block)) == []
    assert index.records == 0


# ------------------------------------------------------------------------------------------------ what is hidden


def test_filters_apply_inside_both_lists_so_that_the_answer_fills_up() -> None:
    hidden = {n: axis(0) for n in range(100, 300)}
    rows = [row(n, "tea tea tea", state=RETRACTED) for n in hidden]
    rows += [row(n, "tea and some rain") for n in range(5)]
    index = built(rows, {**hidden, **{n: [1, 0.1 * n, 0.2, 0, 0] for n in range(5)}})
    hits = index.search(ask("tea", axis(0), top_k=5))
    assert sorted(numbers(hits)) == [0, 1, 2, 3, 4]
    assert {hit.match for hit in hits} == {"hybrid"}
    assert len(index.search(ask("tea", axis(0), top_k=50, include_retracted=True))) == 50


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({}, [1, 2, 5]),
        ({"include_retracted": True}, [1, 2, 3, 5]),
        ({"include_expired": True}, [1, 2, 4, 5]),
        ({"kind": 2}, [2]),
        ({"facets": (facet_hash("topic", "drink"),)}, [2, 5]),
        ({"facets": (facet_hash("topic", "drink"), facet_hash("n", 1.0))}, [5]),
        ({"facets": (facet_hash("topic", "food"),)}, []),
        ({"now": 1_001}, [1, 2]),
    ],
)
def test_status_expiry_kind_and_metadata_hide_records(filters: dict[str, object], found: list[int]) -> None:
    rows = [
        row(1, "tea"),
        row(2, "tea", kind=2, metadata={"topic": "drink"}),
        row(3, "tea", state=RETRACTED),
        row(4, "tea", expires_at=1_000),  # from this instant on
        row(5, "tea", expires_at=1_001, metadata={"topic": "drink", "n": 1}),
    ]
    vectors = {n: axis(0) for n in range(1, 6)}
    for index in (built(rows), built(rows, vectors)):
        assert sorted(numbers(index.search(ask("tea", axis(0), **filters)))) == found
        assert sorted(numbers(index.search(ask("", axis(0), **filters)))) == (found if index.holds_vectors else [])
        assert sorted(numbers(index.recent(ask(**filters)))) == found


# ----------------------------------------------------------------------------------------------------- changes


def test_a_changed_record_is_found_by_its_new_text_only() -> None:
    index = built([row(1, "tea"), row(2, "rain")])
    index.apply([row(1, "sun", entry=3)], {})
    assert numbers(index.search(ask("tea"))) == []
    assert index.search(ask("sun"))[0][:2] == (1, 3)


def test_a_changed_record_without_its_vector_has_none() -> None:
    index = built([row(1, "tea"), row(2, "rain")], {1: axis(0), 2: axis(1)})
    index.apply([row(1, "tea", entry=3)], {})
    assert numbers(index.search(ask("", axis(0)))) == [2]
    index.apply([row(1, "tea", entry=3)], {1: blob(axis(0))})
    assert numbers(index.search(ask("", axis(0)))) == [1, 2]


def test_a_forgotten_record_leaves_and_no_longer_counts() -> None:
    index = built([row(1, "tea"), row(2, "rain")])
    index.apply([row(1, state=FORGOTTEN), row(7, state=FORGOTTEN)], {})
    assert numbers(index.recent(ask(include_retracted=True, include_expired=True))) == [2]
    assert index.records == 1


def test_of_a_record_given_twice_the_last_counts() -> None:
    index = built([row(1, "tea"), row(1, "rain", entry=2)])
    assert numbers(index.search(ask("tea"))) == []
    assert numbers(index.search(ask("rain"))) == [1]


def test_an_index_is_filled_from_blocks_in_any_order_with_vectors_of_others_among_them() -> None:
    given_matrix = unit([axis(2), axis(0), axis(1), axis(0), axis(0)])[0]
    index = ScopeIndex(DIMS)
    index.apply([row(2, "z"), row(0, "x"), row(1, "y"), row(3, "w")], {})
    index.fill([(np.array([2, 0]), given_matrix[:2]), (np.array([1, 9, -1]), given_matrix[2:])])
    for place in range(3):
        assert numbers(index.search(ask("", axis(place), top_k=1))) == [place]
    assert len(index.search(ask("", axis(0)))) == 3


def test_a_matrix_of_another_size_changes_nothing() -> None:
    index = built([row(1, "tea")], {1: axis(0)})
    with pytest.raises(ValueError, match="reshape"):
        index.apply([row(1, "rain", entry=2)], {1: b"\0" * 4 * (DIMS + 1)})
    assert numbers(index.search(ask("tea", axis(0)))) == [1]
    index.apply([row(2, "sun")], {})
    assert numbers(index.search(ask("sun"))) == [2]


@dataclass
class Scope:
    """What a store holds of a scope: the newest row and the vector of each record."""

    rows: dict[int, Row] = field(default_factory=dict)
    vectors: dict[int, bytes] = field(default_factory=dict)
    entries: int = 0

    def change(self, number: int, text: str, state: int, vector: list[float] | None, extra: int) -> None:
        self.entries += 1
        expires_at = [None, 500, 5_000][extra % 3]
        self.rows[number] = row(
            number,
            text,
            entry=self.entries,
            state=state,
            kind=extra % 2,
            expires_at=expires_at,
            metadata={"extra": extra % 2},
        )
        self.vectors.pop(number, None)
        if vector is not None and state != FORGOTTEN:
            self.vectors[number] = blob(vector)

    def outside(self, size: int) -> Outside:
        """All vectors in blocks, newest last."""
        held = [number for number in reversed(self.rows) if number in self.vectors]
        return Outside(self._parts(held, size), self.vectors_of)

    def vectors_of(self, numbers: Iterable[int]) -> tuple[np.ndarray, np.ndarray]:
        held = [number for number in numbers if number in self.vectors]
        return self._parts(held, len(held) + 1)[0] if held else (np.zeros(0, np.int64), np.zeros((0, DIMS), np.float32))

    def nearest(self, query: Query, size: int) -> Outside:
        """All vectors in blocks, in an order that another engine found: nearly that of their scores."""
        if query.vector is None:
            return Outside([], self.vectors_of, 0.0)
        vector = query.vector
        noise = np.random.default_rng(len(self.vectors)).uniform(-SLACK / 2, SLACK / 2, len(self.vectors))
        scored = [
            (float(np.frombuffer(blob, np.float32) @ vector) + wrong, number)
            for (number, blob), wrong in zip(self.vectors.items(), noise, strict=True)
        ]
        order = [number for _, number in sorted(scored, reverse=True)]
        return Outside(self._parts(order, size), self.vectors_of, SLACK)

    def _parts(self, held: list[int], size: int) -> list[tuple[np.ndarray, np.ndarray]]:
        parts = [held[n : n + size] for n in range(0, len(held), size)]
        joined = [b"".join([self.vectors[number] for number in part]) for part in parts]
        matrices = [np.frombuffer(blobs, np.float32).reshape(-1, DIMS) for blobs in joined]
        return [(np.array(part), matrix) for part, matrix in zip(parts, matrices, strict=True)]


CHANGES = st.tuples(
    st.integers(0, 15),
    st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join),
    st.sampled_from([ACTIVE, ACTIVE, ACTIVE, RETRACTED, FORGOTTEN]),
    st.none() | st.lists(st.integers(-2, 2), min_size=DIMS, max_size=DIMS).filter(any),
    st.integers(0, 5),
)
QUERIES = st.builds(
    ask,
    st.lists(st.sampled_from(WORDS), max_size=3).map(" ".join),
    st.none() | st.lists(st.integers(-2, 2), min_size=DIMS, max_size=DIMS).filter(any),
    top_k=st.integers(1, 12),
    kind=st.sampled_from([None, None, 1]),
    facets=st.sampled_from([(), (), (facet_hash("extra", 1),)]),
    include_retracted=st.booleans(),
    include_expired=st.booleans(),
    depth=st.sampled_from([None, None, 3]),
    fusion=st.sampled_from(["rrf", "scores"]),
)


@pytest.mark.parametrize(("tail", "dead"), [(4096, 256), (12, 3), (0, 0)], ids=["tail", "both", "compact"])
@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(CHANGES, min_size=1, max_size=8), max_size=12), st.lists(QUERIES, min_size=1, max_size=6))
def test_an_index_that_followed_the_feed_equals_one_built_anew(
    tail: int, dead: int, batches: list[list[tuple[int, str, int, list[float] | None, int]]], queries: list[Query]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # Small sizes, so that a few changes sort the postings anew and compact the slots.
        patch.setattr(postings_module, "_TAIL_LEAST", tail)
        patch.setattr(index_module, "_DEAD_LEAST", dead)
        scope, followed, bare = Scope(), ScopeIndex(DIMS), ScopeIndex(DIMS, hold_vectors=False)
        for batch in batches:
            for change in batch:
                scope.change(*change)
            changed = {number for number, *_ in batch}
            rows = [scope.rows[number] for number in changed]
            followed.apply(rows, {n: v for n, v in scope.vectors.items() if n in changed})
            bare.apply(rows, {})
            fresh = ScopeIndex(DIMS)
            fresh.apply(list(scope.rows.values()), scope.vectors)
            for query in queries:
                expected = fresh.search(query)
                assert followed.search(query) == expected
                assert bare.search(query, scope.outside(3)) == expected
                assert bare.search(query, scope.nearest(query, 3)) == expected
                assert followed.recent(query) == fresh.recent(query)
            assert followed.records == fresh.records == sum(r.state != FORGOTTEN for r in scope.rows.values())


def test_a_large_scope_that_changes_all_over_equals_one_built_anew() -> None:
    chance = np.random.default_rng(3)
    scope, followed = Scope(), ScopeIndex(DIMS)
    vocabulary = [f"word{n}" for n in range(300)]

    def change(number: int) -> None:
        text = " ".join(chance.choice(vocabulary, 20))
        state = FORGOTTEN if chance.random() < 0.05 else ACTIVE
        scope.change(number, text, state, chance.standard_normal(DIMS).tolist(), int(chance.integers(6)))

    for number in range(1500):
        change(number)
    followed.apply(list(scope.rows.values()), scope.vectors)
    for _ in range(700):
        number = int(chance.integers(1600))
        change(number)
        followed.apply([scope.rows[number]], scope.vectors)
    fresh = ScopeIndex(DIMS)
    fresh.apply(list(reversed(scope.rows.values())), scope.vectors)
    for _ in range(60):
        query = ask(" ".join(chance.choice(vocabulary, 4)), chance.standard_normal(DIMS), top_k=20)
        assert followed.search(query) == fresh.search(query) != []


# ------------------------------------------------------------------------------------------------------- cache


def test_the_index_used_least_recently_leaves_first() -> None:
    size = built([row(1, "tea")]).nbytes
    cache = IndexCache(limit=3 * size)
    for key in "abc":
        cache.put(key, built([row(1, "tea")]))
    assert cache.get("a") is not None
    cache.put("d", built([row(1, "tea")]))
    assert [key for key in "abcd" if cache.get(key)] == ["a", "c", "d"]
    assert cache.nbytes == 3 * size


def test_an_index_that_grew_is_measured_when_it_is_put_again() -> None:
    cache, index = IndexCache(limit=10**6), ScopeIndex()
    cache.put("a", index)
    before = cache.nbytes
    index.apply([row(n, f"tea {n}") for n in range(100)], {})
    cache.put("a", index)
    assert cache.nbytes == index.nbytes > before


def test_an_index_beyond_the_limit_is_kept_only_without_its_vectors() -> None:
    cache = IndexCache(limit=DIMS * 4 - 1)
    assert not cache.fits(records=10, dims=DIMS)
    assert cache.fits(records=10, dims=None)
    cache.put("small", ScopeIndex())
    cache.put("large", built([row(1, "tea")], {1: axis(0)}))
    assert cache.get("large") is None
    bare = ScopeIndex(DIMS, hold_vectors=False)
    bare.apply([row(1, "tea")], {})
    cache.put("bare", bare)
    assert cache.get("bare") is bare
    assert cache.get("small") is None


def test_an_index_whose_vectors_just_fit_is_kept() -> None:
    # Its postings and spare room are beyond the limit then; not to keep it would mean to build it for every read.
    index = built([row(1, "tea")], {1: axis(0)})
    cache = IndexCache(limit=DIMS * 4)
    assert cache.fits(records=1, dims=DIMS)
    cache.put("a", index)
    assert cache.get("a") is index
    index.apply([row(2, "tea")], {})
    cache.put("a", index)
    assert cache.get("a") is None


def test_indexes_can_be_dropped() -> None:
    cache = IndexCache(limit=10**6)
    cache.put("a", ScopeIndex())
    cache.put("b", ScopeIndex())
    cache.discard("a")
    cache.discard("a")
    assert cache.get("a") is None
    cache.clear()
    assert cache.get("b") is None
    assert cache.nbytes == 0
