"""What the store knew at an earlier time: by an instant, inclusive, or by a scope revision, exactly."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from fakes import START, Clock, FakeEmbedder, ids, refusal, texts, word_vector

from vmem_core import Draft, InvalidRequestError, MemorySession

MICRO = timedelta(microseconds=1)


async def test_as_of_an_instant_is_inclusive_to_the_microsecond(ada: MemorySession, clock: Clock) -> None:
    await ada.remember("tea one", id="a")
    second = clock.step(microseconds=1)
    await ada.revise("a", text="tea two")
    third = clock.step(days=1)
    await ada.revise("a", text="tea three")
    for at, expected in (
        (START - MICRO, []), (START, ["tea one"]), (second, ["tea two"]), (third - MICRO, ["tea two"]),
        (third, ["tea three"]), (third + timedelta(days=9), ["tea three"]),
        (datetime.max.replace(tzinfo=UTC), ["tea three"]),

        (datetime.min.replace(tzinfo=UTC), []), (second.astimezone(timezone(timedelta(hours=-8))), ["tea two"]),
    ):  # fmt: skip
        assert texts(await ada.recall("tea", recorded_as_of=at)) == expected
        assert texts(await ada.recall(recorded_as_of=at)) == expected


async def test_as_of_a_scope_revision_is_exact(ada: MemorySession) -> None:
    await ada.remember("tea one", id="a")
    await ada.remember("tea other", id="b")
    await ada.revise("a", text="tea two")
    await ada.retract("b")
    known = [[], ["tea one"], ["tea other", "tea one"], ["tea two", "tea other"], ["tea two"]]
    for revision, expected in enumerate(known):
        assert texts(await ada.recall(at_scope_revision=revision)) == expected
        assert sorted(texts(await ada.recall("tea", at_scope_revision=revision))) == sorted(expected)


async def test_a_scope_revision_that_is_still_to_come_is_refused_naming_the_current_one(ada: MemorySession) -> None:
    error = await refusal(ada.recall("tea", at_scope_revision=1))
    assert str(error) == (
        "at_scope_revision: the scope is at revision 0, and what is known later nobody can tell; give 0 or less"
    )
    await ada.remember("tea")
    for beyond in (2, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**70):
        for text in ("tea", None, " "):
            error = await refusal(ada.recall(text, at_scope_revision=beyond))
            assert isinstance(error, InvalidRequestError)
            assert "the scope is at revision 1, " in str(error)
    assert texts(await ada.recall("tea", at_scope_revision=1)) == ["tea"]


async def test_revisions_of_one_instant_are_told_apart_by_scope_revision(ada: MemorySession, clock: Clock) -> None:
    await ada.remember("tea one", id="a")
    clock.step(seconds=-2)
    await ada.revise("a", text="tea two")
    await ada.revise("a", text="tea three")
    assert texts(await ada.recall("tea", recorded_as_of=START)) == ["tea three"]
    assert [texts(await ada.recall("tea", at_scope_revision=n)) for n in (1, 2, 3)] == [
        ["tea one"], ["tea two"], ["tea three"]
    ]  # fmt: skip


async def test_expiry_is_judged_as_of_then(ada: MemorySession, clock: Clock) -> None:
    await ada.remember("tea", id="a", ttl=timedelta(seconds=10))
    clock.step(seconds=10)
    await ada.remember("coffee", id="b")
    clock.step(days=1)
    assert await ada.recall("tea") == []
    assert ids(await ada.recall("tea", recorded_as_of=START + timedelta(seconds=10) - MICRO)) == ["a"]
    assert await ada.recall("tea", recorded_as_of=START + timedelta(seconds=10)) == []
    assert ids(await ada.recall("tea", recorded_as_of=START + timedelta(seconds=10), include_expired=True)) == ["a"]
    assert ids(await ada.recall("tea", at_scope_revision=1)) == ["a"]
    assert await ada.recall("tea", at_scope_revision=2) == []
    assert ids(await ada.recall("tea", at_scope_revision=2, include_expired=True)) == ["a"]
    await ada.revise("a", ttl=None)
    assert ids(await ada.recall("tea", at_scope_revision=3)) == ["a"]
    assert await ada.recall("tea", at_scope_revision=2) == []


async def test_records_retracted_then_are_shown_with_include_retracted(ada: MemorySession) -> None:
    await ada.remember("tea", id="a")
    await ada.retract("a")
    await ada.revise("a", text="tea again")
    assert await ada.recall("tea", at_scope_revision=2) == []
    then = await ada.recall("tea", at_scope_revision=2, include_retracted=True)
    assert [(hit.record.status, hit.record.revision, hit.record.text) for hit in then] == [("retracted", 2, "tea")]
    assert [hit.record.status for hit in await ada.recall("tea", at_scope_revision=1, include_retracted=True)] == [
        "active"
    ]


async def test_filters_look_at_the_revision_of_then(ada: MemorySession) -> None:
    await ada.remember("tea", id="a", kind="working", metadata={"n": 1})
    await ada.revise("a", kind="episodic", metadata={"n": 2})
    assert ids(await ada.recall("tea", kind="working", at_scope_revision=1)) == ["a"]
    assert await ada.recall("tea", kind="working", at_scope_revision=2) == []
    assert ids(await ada.recall("tea", metadata={"n": 1}, at_scope_revision=1)) == ["a"]
    assert await ada.recall("tea", metadata={"n": 2}, at_scope_revision=1) == []


async def test_a_forgotten_record_is_in_no_earlier_time(ada: MemorySession, clock: Clock) -> None:
    await ada.remember_many([Draft("tea", "a"), Draft("tea", "b")])
    await ada.revise("a", text="tea two")
    await ada.forget("a")
    for at in ({"at_scope_revision": 1}, {"at_scope_revision": 2}, {"recorded_as_of": START}):
        assert ids(await ada.recall("tea", **at, include_retracted=True)) == ["b"]  # type: ignore[arg-type]


async def test_a_text_of_then_is_compared_by_its_own_vector_only(seeing: MemorySession, embedder: FakeEmbedder) -> None:
    embedder.vectors |= {
        "old": [1, 0, 0, 0, 0, 0, 0, 0],
        "new": [0, 1, 0, 0, 0, 0, 0, 0],
        "same": [0, 0, 1, 0, 0, 0, 0, 0],
    }
    await seeing.remember("old", id="a")
    await seeing.remember("same", id="b")
    await seeing.revise("a", text="new")
    await seeing.revise("b", importance=0.5)
    embedder.vectors["query"] = [1, 1, 1, 0, 0, 0, 0, 0]
    then = await seeing.recall("query", at_scope_revision=2)
    assert [(hit.record.text, hit.match) for hit in then] == [("same", "vector"), ("old", "vector")]
    embedder.vectors["query"] = [9, 1, 1, 0, 0, 0, 0, 0]
    then = await seeing.recall("query", at_scope_revision=2)
    assert [(hit.record.text, hit.match) for hit in then] == [("old", "vector"), ("same", "vector")]
    assert {hit.record.text for hit in await seeing.recall("query", at_scope_revision=4)} == {"new", "same"}


async def test_a_text_that_comes_back_brings_no_vector_of_an_earlier_revision_with_it(
    seeing: MemorySession, ada: MemorySession, embedder: FakeEmbedder
) -> None:
    embedder.vectors["query"] = word_vector("tea", 8)
    await seeing.remember("tea", id="a")
    await ada.revise("a", text="coffee")
    await ada.revise("a", text="tea")
    found = [ids(await seeing.recall("query", at_scope_revision=n)) for n in (1, 2, 3)]
    assert found == [["a"], [], []]
    assert await seeing.recall("query") == []
    await seeing.revise("a", text="tea", importance=0.5)
    assert ids(await seeing.recall("query")) == ids(await seeing.recall("query", at_scope_revision=4)) == ["a"]
    await ada.revise("a", kind="working")
    assert ids(await seeing.recall("query", at_scope_revision=5)) == ["a"]


async def test_ranking_of_then_uses_the_counts_of_then(ada: MemorySession) -> None:
    await ada.remember_many([Draft("green mug", "mug"), Draft("tea cup", "cup"), Draft("tea pot", "pot")])
    then = await ada.recall("green tea", top_k=9)
    for n in range(10):
        await ada.remember(f"green {n}")
    assert ids(await ada.recall("green tea", top_k=3)) != ids(then)
    assert await ada.recall("green tea", top_k=9, at_scope_revision=1) == then


async def test_as_of_now_is_the_same_as_now(seeing: MemorySession, clock: Clock) -> None:
    for n in range(12):
        clock.step(seconds=1)
        await seeing.remember(f"tea number {n % 4}", id=f"a{n}", ttl=timedelta(seconds=5) if n % 3 == 0 else None)
        if n % 4 == 1:
            await seeing.retract(f"a{n}")
    now = await seeing.recall("tea number 2", top_k=20)
    assert await seeing.recall("tea number 2", top_k=20, recorded_as_of=clock.now) == now
    assert await seeing.recall("tea number 2", top_k=20, at_scope_revision=await seeing.scope_revision()) == now
