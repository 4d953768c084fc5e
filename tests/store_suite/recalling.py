"""Recall: both lists and their fusion, ties, filters, blank and odd queries, and what was known at an earlier time."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
from fakes import START, Clock, FakeEmbedder, ids, refusal

from vmem_core import Draft, Hit, InvalidRequestError, MemorySession, Store


def places(hits: list[Hit]) -> list[tuple[str, str, int | None, int | None]]:
    """Of each hit its id, how it matched and its place in both lists."""
    return [(hit.record.id, hit.match, hit.vector_rank, hit.lexical_rank) for hit in hits]


# ---------------------------------------------------------------------------------------------- words and vectors


async def test_records_are_found_by_their_words(ada: MemorySession) -> None:
    await ada.remember_many(
        [Draft("She ordered two coffees", "a"), Draft("It may rain", "b"), Draft("Rainy days", "c")]
    )
    hits = await ada.recall("Which order?")
    assert places(hits) == [("a", "lexical", None, 1)]
    assert hits[0].score == 1 / 61
    assert await ada.recall("snow") == []


async def test_words_rank_by_bm25_over_the_scopes_own_counts(ada: MemorySession, bob: MemorySession) -> None:
    await ada.remember_many([
        Draft("tea tea tea green", "much"), Draft("tea in a very long sentence about many other things", "long"),
        Draft("green mug", "mug"), Draft("tea", "short"), Draft("rain", "rain"),
    ])  # fmt: skip
    order = ids(await ada.recall("green tea"))
    assert order == ["much", "mug", "short", "long"]
    for n in range(20):
        await bob.remember(f"green thing {n}")
    assert ids(await ada.recall("green tea")) == order


async def test_both_lists_are_fused_by_reciprocal_rank(seeing: MemorySession, embedder: FakeEmbedder) -> None:
    embedder.vectors |= {
        "north": [1, 0, 0, 0, 0, 0, 0, 0], "tea near north": [1, 0.1, 0, 0, 0, 0, 0, 0],
        "tea and tea": [0, 1, 0, 0, 0, 0, 0, 0], "due north": [1, 0.01, 0, 0, 0, 0, 0, 0],
        "tea": [1, 0, 0, 0, 0, 0, 0, 0],
    }  # fmt: skip
    await seeing.remember_many(
        [Draft("tea near north", "both"), Draft("tea and tea", "words"), Draft("due north", "near")]
    )
    hits = await seeing.recall("tea")
    assert places(hits) == [("words", "hybrid", 3, 1), ("both", "hybrid", 2, 2), ("near", "vector", 1, None)]
    assert [hit.score for hit in hits] == [1 / 63 + 1 / 61, 1 / 62 + 1 / 62, 1 / 61]
    assert not any(math.isnan(hit.score) for hit in hits)


async def test_without_an_embedder_words_alone_are_searched(seeing: MemorySession, ada: MemorySession) -> None:
    await seeing.remember("tea with milk", id="a")
    assert places(await ada.recall("tea")) == [("a", "lexical", None, 1)]
    assert places(await seeing.recall("tea")) == [("a", "hybrid", 1, 1)]


async def test_records_without_a_vector_are_found_by_words(seeing: MemorySession, ada: MemorySession) -> None:
    await seeing.remember("tea with milk", id="seen")
    await ada.remember("tea with lemon", id="unseen")
    assert places(await seeing.recall("tea")) == [("seen", "hybrid", 1, 2), ("unseen", "lexical", None, 1)]


async def test_the_nearest_by_exact_cosine_come_first_whatever_their_length(
    seeing: MemorySession, embedder: FakeEmbedder
) -> None:
    pad = [0.0] * 6
    for n, pair in enumerate([(0.0, 1.0), (1e-3, 1e-3), (1e200, 1e190), (3.0, 1.0), (-5.0, 0.0)]):
        embedder.vectors[f"v{n} a{n}"] = [*pair, *pad]
        await seeing.remember(f"v{n} a{n}", id=f"v{n}")
    embedder.vectors["q"] = [2.0, 0.0, *pad]
    assert ids(await seeing.recall("q")) == ["v2", "v3", "v1", "v0", "v4"]


async def test_each_list_is_as_deep_as_hits_are_wanted_at_least_ten(
    seeing: MemorySession, embedder: FakeEmbedder
) -> None:
    near = [Draft(f"n{n}", f"n{n}") for n in range(60)]
    embedder.vectors |= {f"n{n}": [1, n / 100, 0, 0, 0, 0, 0, 0] for n in range(60)}
    embedder.vectors |= {"word": [1, 0, 0, 0, 0, 0, 0, 0], "the word": [0, 1, 0, 0, 0, 0, 0, 0]}
    await seeing.remember_many([*near, Draft("the word", "far")])
    found = {}
    for top_k in (1, 10, 60, 61):
        found[top_k] = [hit for hit in await seeing.recall("word", top_k=top_k) if hit.record.id == "far"]
    places_of_far = {top_k: [(hit.vector_rank, hit.lexical_rank) for hit in hits] for top_k, hits in found.items()}
    # Alone at the head of the lexical list it ties with the head of the vector list, and the newer comes first.
    assert places_of_far == {n: [(None, 1)] for n in (1, 10, 60)} | {61: [(61, 1)]}


# ------------------------------------------------------------------------------------------------------------ ties


async def test_ties_go_to_the_newest(ada: MemorySession) -> None:
    for n in range(3):
        await ada.remember("tea", id=f"a{n}")
    await ada.remember_many([Draft("tea", "many1"), Draft("tea", "many2")])
    assert ids(await ada.recall("tea")) == ["many2", "many1", "a2", "a1", "a0"]
    await ada.revise("a1", importance=1.0)
    assert ids(await ada.recall("tea")) == ["a1", "many2", "many1", "a2", "a0"]
    assert ids(await ada.recall("tea", top_k=2)) == ["a1", "many2"]


async def test_ties_by_vector_go_to_the_newest(seeing: MemorySession, embedder: FakeEmbedder) -> None:
    for n in range(4):
        embedder.vectors[f"text{n}"] = [1, 1, 0, 0, 0, 0, 0, 0]
        await seeing.remember(f"text{n}", id=f"a{n}")
    embedder.vectors["query"] = [1, 0, 0, 0, 0, 0, 0, 0]
    await seeing.revise("a0", kind="working")
    assert ids(await seeing.recall("query")) == ["a0", "a3", "a2", "a1"]


async def test_ties_beyond_the_depth_of_a_list_go_to_the_newest(ada: MemorySession) -> None:
    await ada.remember_many([Draft("tea", f"a{n}") for n in range(100)])
    assert ids(await ada.recall("tea", top_k=3)) == ["a99", "a98", "a97"]


async def test_the_same_query_has_the_same_answer_every_time(store: Store, seeing: MemorySession) -> None:
    await seeing.remember_many([Draft(f"tea number {n % 7} of kind {n % 5}") for n in range(60)])
    first = await seeing.recall("tea number 3 kind 2", top_k=20)
    for n in range(60):
        await seeing.revise(f"r{n + 1}", importance=0.5)
        await seeing.retract(f"r{n + 1}")
        await seeing.revise(f"r{n + 1}")
    again = await seeing.recall("tea number 3 kind 2", top_k=20)
    assert [hit.score for hit in again] == [hit.score for hit in first]
    assert places(again) == places(first)
    assert await seeing.recall("tea number 3 kind 2", top_k=20) == again
    latest = await seeing.recall("tea number 3 kind 2", top_k=20, at_scope_revision=await seeing.scope_revision())
    assert latest == again


# --------------------------------------------------------------------------------------------------------- filters


async def test_filters_work_inside_both_lists_so_that_top_k_fills(
    seeing: MemorySession, embedder: FakeEmbedder, clock: Clock
) -> None:
    drafts = []
    for n in range(200):
        drafts.append(Draft("tea tea", f"no{n}", kind="working", ttl=timedelta(seconds=1)))
    drafts += [Draft(f"tea of a longer kind {n}", f"yes{n}", metadata={"topic": "tea"}) for n in range(6)]
    await seeing.remember_many(drafts)
    assert len(await seeing.recall("tea", kind="semantic", top_k=6)) == 6
    assert len(await seeing.recall("tea", metadata={"topic": "tea"}, top_k=6)) == 6
    clock.step(seconds=1)
    hits = await seeing.recall("tea", top_k=6)
    assert {hit.record.id for hit in hits} == {f"yes{n}" for n in range(6)}
    assert {hit.match for hit in hits} == {"hybrid"}
    assert sorted(hit.vector_rank for hit in hits) == [1, 2, 3, 4, 5, 6]  # type: ignore[type-var]


async def test_each_list_alone_is_filtered(seeing: MemorySession, ada: MemorySession, embedder: FakeEmbedder) -> None:
    embedder.vectors["vector only"] = embedder.vectors["query"] = [0, 0, 0, 1, 0, 0, 0, 0]
    await seeing.remember("vector only", id="v", kind="working", metadata={"a": 1})
    await ada.remember("the query words", id="w", kind="working", metadata={"a": 1})
    for given, found in (
        ({}, 2), ({"kind": "working"}, 2), ({"kind": "semantic"}, 0), ({"metadata": {"a": 1}}, 2),
        ({"metadata": {"a": 2}}, 0), ({"metadata": {"b": 1}}, 0), ({"kind": "working", "metadata": {"a": 1}}, 2),
    ):  # fmt: skip
        assert len(await seeing.recall("query", **given)) == found  # type: ignore[arg-type]
        assert len(await seeing.recall(**given)) == found  # type: ignore[arg-type]
    for record_id in ("v", "w"):
        await seeing.retract(record_id)
    assert await seeing.recall("query") == []
    assert {hit.match for hit in await seeing.recall("query", include_retracted=True)} == {"vector", "lexical"}


EQUAL_VALUES: list[tuple[Any, Any]] = [
    (1, 1.0), (0, -0.0), ({"a": 1, "b": [1]}, {"b": [1.0], "a": 1}), (None, None), ("x", "x"), ([], []),
    (2**53, float(2**53)),
]  # fmt: skip
OTHER_VALUES: list[tuple[Any, Any]] = [
    (1, True), (0, False), (1, "1"), (None, "null"), (None, False), ([1, 2], [2, 1]), ([], {}), ("x", "X"), ("", None),
    ("\u00e9", "e\u0301"), (2**53, 2**53 + 1), ({"a": 1}, {"a": 1, "b": 2}),
    ([1], 1), ("x", "x "), (0.1, 0.10000000000000002),
]  # fmt: skip


@pytest.mark.parametrize("pair", EQUAL_VALUES, ids=range(len(EQUAL_VALUES)))
async def test_metadata_that_is_equal_as_json_matches(ada: MemorySession, pair: tuple[Any, Any]) -> None:
    await ada.remember("tea", metadata={"key": pair[0], "other": 1})
    assert len(await ada.recall("tea", metadata={"key": pair[1]})) == 1
    assert len(await ada.recall("tea", metadata={"key": pair[1], "other": 1})) == 1
    assert await ada.recall("tea", metadata={"key": pair[1], "other": 2}) == []


@pytest.mark.parametrize("pair", OTHER_VALUES, ids=range(len(OTHER_VALUES)))
async def test_metadata_that_differs_as_json_does_not_match(ada: MemorySession, pair: tuple[Any, Any]) -> None:
    await ada.remember("tea", metadata={"key": pair[0]})
    assert await ada.recall("tea", metadata={"key": pair[1]}) == []


async def test_metadata_matches_top_level_keys_only_and_follows_revisions(ada: MemorySession) -> None:
    record = (await ada.remember("tea", metadata={"a": {"b": 1}})).records[0]
    assert await ada.recall("tea", metadata={"b": 1}) == []
    assert await ada.recall("tea", metadata={"a.b": 1}) == []
    await ada.revise(record.id, metadata={"b": 1})
    assert await ada.recall("tea", metadata={"a": {"b": 1}}) == []
    assert ids(await ada.recall("tea", metadata={"b": 1})) == [record.id]
    assert ids(await ada.recall("tea", metadata={"a": {"b": 1}}, at_scope_revision=1)) == [record.id]
    assert ids(await ada.recall("tea", metadata={})) == ids(await ada.recall("tea", metadata=None)) == [record.id]


async def test_retracted_and_expired_records_are_found_when_asked_for(ada: MemorySession, clock: Clock) -> None:
    await ada.remember("tea", id="retracted")
    await ada.retract("retracted")
    await ada.remember("tea", id="expired", ttl=timedelta(seconds=1))
    await ada.remember("tea", id="both", ttl=timedelta(seconds=1))
    await ada.retract("both")
    await ada.remember("tea", id="live")
    clock.step(seconds=1)
    assert ids(await ada.recall("tea")) == ["live"]
    assert ids(await ada.recall("tea", include_retracted=True)) == ["live", "retracted"]
    assert ids(await ada.recall("tea", include_expired=True)) == ["live", "expired"]
    every = await ada.recall("tea", include_retracted=True, include_expired=True)
    assert ids(every) == ["live", "both", "expired", "retracted"]
    assert ids(await ada.recall(include_retracted=True, include_expired=True)) == ids(every)


# --------------------------------------------------------------------------------------------- no text, blank, odd


async def test_without_a_text_the_records_changed_last_come_first(ada: MemorySession) -> None:
    await ada.remember_many([Draft("one", "a"), Draft("two", "b"), Draft("three", "c")])
    await ada.revise("a", importance=0.1)
    hits = await ada.recall()
    assert ids(hits) == ["a", "c", "b"]
    assert places(hits)[0] == ("a", "recent", None, None)
    assert [hit.score for hit in hits] == [0.0, 0.0, 0.0]
    assert ids(await ada.recall(top_k=2)) == ["a", "c"]
    await ada.retract("c")
    assert ids(await ada.recall(include_retracted=True)) == ["c", "a", "b"]
    assert ids(await ada.recall(at_scope_revision=1)) == ["c", "b", "a"]


@pytest.mark.parametrize("text", ["", " ", "\n\t", "\u200b", "\u200d", "\u3000", "\ufeff"], ids=range(7))
async def test_a_blank_query_finds_nothing(seeing: MemorySession, embedder: FakeEmbedder, text: str) -> None:
    await seeing.remember("tea")
    embedder.calls.clear()
    assert await seeing.recall(text) == []
    assert await seeing.recall(text, include_retracted=True, at_scope_revision=1) == []
    assert embedder.calls == []


ODD = [
    '"', '""', "'", "*", "NOT", "a AND", "OR",
    "NEAR(", "(a", "^a", "text:x", "t:email", "-", "--", "{}", "[", "\\", "%",
    "_",
    "$1", "?", ":a", "C++ NEAR/2", "\x01", "\ufffd", "\U0001f600", "e\u0301", "a" * 100_000, "tea " * 25_000,
    "\u0301" * 10_000, "; drop table vmem_records", "\u202etfel", "\x7f", "a\u0000"[:1], "0", "1e9", "💥" * 1000,
]  # fmt: skip


async def test_no_query_is_a_syntax_error(seeing: MemorySession) -> None:
    await seeing.remember("pre-edit check, GB/s and C++, don't", id="a")
    for query in ODD:
        assert {hit.record.id for hit in await seeing.recall(query)} <= {"a"}
        assert {hit.record.id for hit in await seeing.recall(query, at_scope_revision=1)} <= {"a"}
    for query in ("pre-edit", "GB/s", "C++", "don't", "DON’T", '"pre-edit"', "check*", "pre edit"):
        assert ids(await seeing.recall(query)) == ["a"]


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ({"text": "a\x00"}, "text"), ({"text": "\ud83d"}, "text"), ({"text": 5}, "text"), ({"text": b"x"}, "text"),
        ({"top_k": 0}, "top_k"), ({"top_k": 1001}, "top_k"), ({"top_k": -1}, "top_k"), ({"top_k": None}, "top_k"),
        ({"top_k": 5.0}, "top_k"), ({"top_k": True}, "top_k"), ({"kind": "fact"}, "kind"), ({"kind": ""}, "kind"),
        ({"recorded_as_of": START.replace(tzinfo=None)}, "recorded_as_of"),
        ({"recorded_as_of": "2026"}, "recorded_as_of"),
        ({"at_scope_revision": -1}, "at_scope_revision"), ({"at_scope_revision": "1"}, "at_scope_revision"),
        ({"at_scope_revision": True}, "at_scope_revision"),
        ({"recorded_as_of": START, "at_scope_revision": 1}, "at_scope_revision"),
        ({"include_retracted": 1}, "include_retracted"), ({"include_expired": None}, "include_expired"),
        ({"metadata": "a"}, "metadata"), ({"metadata": {"a": float("nan")}}, "metadata.a"),
        ({"metadata": {"a": {1}}}, "metadata.a"), ({"metadata": {1: 2}}, "metadata"),
        ({"metadata": {"a": "\ud83d"}}, "metadata.a"),
        ({"metadata": {"a": 2**63}}, "metadata.a"),
    ],
    ids=range(26),
)  # fmt: skip
async def test_wrong_arguments_of_recall_are_named(
    seeing: MemorySession, embedder: FakeEmbedder, arguments, path
) -> None:
    await seeing.remember("tea")
    embedder.calls.clear()
    error = await refusal(seeing.recall(**{"text": "tea", **arguments}))
    assert isinstance(error, InvalidRequestError)
    assert (error.code, error.path) == ("invalid_request", path)
    assert embedder.calls == []


HOSTILE = ["a') OR 1=1 --", 'a"b', "a.b", "$.a", "a[0]", "$", "\U0001f600", " ", "", "%", "a\nb", "null", "1"]


@pytest.mark.parametrize("key", HOSTILE, ids=range(len(HOSTILE)))
async def test_filter_keys_match_to_the_letter(ada: MemorySession, key: str) -> None:
    await ada.remember("tea", id="held", metadata={key: "x"})
    await ada.remember("tea", id="other", metadata={"a": "x", "b": {"a": "x"}})
    assert ids(await ada.recall("tea", metadata={key: "x"})) == ["held"]
    assert await ada.recall("tea", metadata={key: "y"}) == []


async def test_a_misspelt_filter_is_refused_by_name(ada: MemorySession) -> None:
    with pytest.raises(TypeError):
        await ada.recall("tea", userid="ada")  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        await ada.list(user_id="ada")  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        await ada.remember("tea", scope="bob")  # type: ignore[call-arg]
