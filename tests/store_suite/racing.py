"""Many writers at once: one receipt for one id, one winner for one revision, one record for one text."""

from __future__ import annotations

import asyncio

from fakes import ADA, BOB, FakeEmbedder, Ids, open_memory, texts

from vmem_core import Draft, MemorySession, RevisionConflictError, Store


async def test_twenty_racing_writers_of_one_id_get_twenty_equal_receipts(store: Store) -> None:
    sessions = [open_memory(store) for _ in range(20)]
    results = await asyncio.gather(*[one.remember("likes coffee", operation_id="op") for one in sessions])
    assert len({result.receipt for result in results}) == 1
    assert len({result.records[0].id for result in results}) == 1
    assert sorted(result.replayed for result in results) == [False] + [True] * 19
    assert (await sessions[0].count(), await sessions[0].scope_revision()) == (1, 1)


async def test_racing_writers_of_one_id_that_embed_write_one_record(store: Store) -> None:
    sessions = [open_memory(store, embedder=FakeEmbedder()) for _ in range(20)]
    results = await asyncio.gather(*[one.remember("likes coffee", operation_id="op") for one in sessions])
    assert len({result.receipt for result in results}) == 1
    assert (await sessions[0].count(), await sessions[0].scope_revision()) == (1, 1)
    assert [hit.match for hit in await sessions[0].recall("coffee")] == ["hybrid"]


async def test_racing_requests_of_one_id_that_differ_leave_one_winner(store: Store) -> None:
    sessions = [open_memory(store) for _ in range(20)]
    tasks = [one.remember(f"text {n % 4}", operation_id="op") for n, one in enumerate(sessions)]
    results = await asyncio.gather(*tasks, return_exceptions=True)
    won = [result for result in results if not isinstance(result, BaseException)]
    assert {getattr(result, "code", None) for result in results if isinstance(result, BaseException)} == {
        "operation_conflict"
    }
    assert len(won) == 5
    assert len({result.receipt for result in won}) == 1
    assert await sessions[0].count() == 1


async def test_racing_writers_without_an_id_all_write(ada: MemorySession) -> None:
    results = await asyncio.gather(*[ada.remember("likes coffee") for _ in range(20)])
    assert await ada.count() == 20
    assert sorted(result.receipt.scope_revision for result in results) == list(range(1, 21))


async def test_of_two_racing_revisers_of_one_revision_one_wins(ada: MemorySession) -> None:
    record = (await ada.remember("start")).records[0]
    for n in range(1, 101):
        results = await asyncio.gather(
            ada.revise(record.id, text=f"x{n}", expected_revision=n),
            ada.revise(record.id, text=f"y{n}", expected_revision=n),
            return_exceptions=True,
        )
        lost = [result for result in results if isinstance(result, RevisionConflictError)]
        assert [(error.expected_revision, error.actual_revision, error.attempts) for error in lost] == [(n, n + 1, 1)]
    history = await ada.history(record.id)
    assert [r.revision for r in history] == list(range(1, 102))
    assert [r.scope_revision for r in history] == list(range(1, 102))


async def test_racing_revisers_without_an_expected_revision_apply_in_series(ada: MemorySession) -> None:
    record = (await ada.remember("start")).records[0]
    await asyncio.gather(*[ada.revise(record.id, text=f"text {n}") for n in range(20)])
    history = await ada.history(record.id)
    assert [r.revision for r in history] == list(range(1, 22))
    assert sorted(texts(history[1:])) == sorted(f"text {n}" for n in range(20))


async def test_racing_adds_that_skip_equal_texts_write_one_record(store: Store, new_id: Ids) -> None:
    sessions = [open_memory(store, new_id=new_id, embedder=FakeEmbedder() if n % 2 else None) for n in range(20)]
    spellings = ["likes coffee", "Likes Coffee ", "LIKES COFFEE", " likes coffee"]
    results = await asyncio.gather(
        *[one.remember(spellings[n % 4], supersede="skip_equal") for n, one in enumerate(sessions)]
    )
    written = [result for result in results if result.records]
    assert len(written) == 1
    assert {result.present for result in results if not result.records} == {written[0].records}
    assert (await sessions[0].count(), await sessions[0].scope_revision()) == (1, 20)


async def test_racing_creators_of_one_record_id_leave_one_winner(store: Store) -> None:
    sessions = [open_memory(store, scope) for scope in (ADA, BOB) * 10]
    tasks = [one.remember_many([Draft("a"), Draft(f"text {n}", "same")]) for n, one in enumerate(sessions)]
    results = await asyncio.gather(*tasks, return_exceptions=True)
    errors = [result for result in results if isinstance(result, BaseException)]
    assert [getattr(error, "code", None) for error in errors] == ["record_conflict"] * 19
    counts = [await open_memory(store, scope).count() for scope in (ADA, BOB)]
    assert sorted(counts) == [0, 2]


async def test_a_refused_operation_fails_no_other_that_waits_with_it(ada: MemorySession) -> None:
    await ada.remember("held", id="held")
    tasks = []
    for n in range(30):
        tasks.append(ada.remember(f"good {n}") if n % 3 else ada.remember(f"bad {n}", id="held"))
    results = await asyncio.gather(*tasks, return_exceptions=True)
    refused = [n for n, result in enumerate(results) if isinstance(result, BaseException)]
    assert refused == list(range(0, 30, 3))
    assert await ada.count() == 21
    assert await ada.scope_revision() == 21
    assert all("good" in text or text == "held" for text in texts((await ada.list()).records))


async def test_racing_forgets_delete_once(ada: MemorySession) -> None:
    await ada.remember("tea", id="a")
    results = await asyncio.gather(*[ada.forget("a", operation_id="op" if n % 2 else f"op{n}") for n in range(10)])
    assert [result.revisions for result in results if result.revisions] == [(1,)]
    assert sum(not result.already_forgotten for result in results) == 1
    assert await ada.history("a") == []


async def test_readers_see_whole_operations_while_others_write(ada: MemorySession) -> None:
    async def write() -> None:
        for n in range(20):
            await ada.remember_many([Draft(f"pair {n}"), Draft(f"pair {n}")])

    async def read() -> list[int]:
        return [len(await ada.recall("pair", top_k=1000)) for _ in range(30)]

    _, *seen = await asyncio.gather(write(), read(), read())
    assert all(count % 2 == 0 for counts in seen for count in counts)
    assert all(counts == sorted(counts) for counts in seen)


async def test_twenty_first_calls_at_once_all_succeed(store: Store) -> None:
    sessions = [open_memory(store) for _ in range(20)]
    calls = [one.remember(f"text {n}") if n % 2 else one.recall("text") for n, one in enumerate(sessions)]
    await asyncio.gather(*calls)
    assert await sessions[0].count() == 10


async def test_a_cancelled_write_is_applied_whole_or_not_at_all(ada: MemorySession) -> None:
    for n in range(30):
        task = asyncio.ensure_future(ada.remember_many([Draft(f"one {n}"), Draft(f"two {n}")], operation_id=f"op{n}"))
        for _ in range(n % 5):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await ada.remember("last")
    revision = -1
    while revision != await ada.scope_revision():  # one that was under way when it was cancelled may still be applied
        revision = await ada.scope_revision()
        applied = [n for n in range(30) if await ada.receipt(f"op{n}") is not None]
        count = await ada.count()
    assert count == 2 * len(applied) + 1
    assert revision == len(applied) + 1
    for n in applied:
        again = await ada.remember_many([Draft(f"one {n}"), Draft(f"two {n}")], operation_id=f"op{n}")
        assert (again.replayed, texts(again.records)) == (True, [f"one {n}", f"two {n}"])
