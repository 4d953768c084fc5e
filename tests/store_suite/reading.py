"""Get, history, list, count, receipts and scopes: whose records are seen, in which order, and for how long."""

from __future__ import annotations

import itertools
from datetime import timedelta

import pytest
from fakes import ADA, BOB, START, Clock, Ids, everything, ids, open_memory, refusal, refusals, texts

from vmem_core import Draft, InvalidRequestError, MemorySession, Scope, Store, StoreUnavailableError, cursors


async def all_pages(memory: MemorySession, **arguments) -> list[str]:
    """The ids of every page, in order."""
    found, cursor = [], None
    while True:
        page = await memory.list(cursor=cursor, **arguments)
        found += ids(page.records)
        if (cursor := page.cursor) is None:
            return found


# --------------------------------------------------------------------------------------------------------- scopes

PAIRS = [
    (Scope(user_id="u1"), Scope(user_id="u10")),
    (Scope(user_id="acme"), Scope(user_id="acme-corp")),
    (Scope(user_id="a.b"), Scope(user_id="a")),
    (Scope(user_id="a"), Scope(user_id="a ")),
    (Scope(user_id="A"), Scope(user_id="a")),
    (Scope(user_id="caf\u00e9"), Scope(user_id="cafe\u0301")),
    (Scope(user_id="u_1"), Scope(user_id="uX1")),
    (Scope(user_id="u%"), Scope(user_id="u1")),
    (Scope(user_id="a:b", agent_id="c"), Scope(user_id="a", agent_id="b:c")),
    (Scope(user_id='a","agent_id":"b'), Scope(user_id="a", agent_id="b")),
    (Scope(user_id="a"), Scope(agent_id="a")),
    (Scope(user_id="a"), Scope(user_id="a", chat_id="c")),
    (Scope(user_id="a", run_id="r"), Scope(user_id="a", actor_id="r")),
]


@pytest.mark.parametrize("pair", PAIRS, ids=range(len(PAIRS)))
async def test_a_scope_never_sees_or_touches_one_that_differs(
    store: Store, new_id: Ids, pair: tuple[Scope, ...]
) -> None:
    own, other = (open_memory(store, scope, new_id=new_id) for scope in pair)
    mine = (await own.remember("tea with milk", operation_id="op", metadata={"m": 1})).records[0]
    theirs = (await other.remember("tea with milk", operation_id="op", metadata={"m": 1})).records[0]
    await other.revise(theirs.id, text="tea with lemon")
    before = await everything(other, theirs.id, mine.id)
    assert before["get"][mine.id] is None
    assert before["history"][mine.id] == []
    for found in (
        await own.recall("tea"), await own.recall(), await own.recall("tea", at_scope_revision=1),
        await own.recall("tea", recorded_as_of=START), await own.recall(metadata={"m": 1}),
        (await own.list(status=None)).records,
    ):  # fmt: skip
        assert ids(found) == [mine.id]
    await own.revise(mine.id, text="coffee")
    await own.forget(theirs.id)
    await own.forget_scope()
    assert await everything(other, theirs.id, mine.id) == before
    assert await other.receipt("op") is not None
    assert set(await store.scopes()) == set(pair)  # type: ignore[attr-defined]


async def test_scopes_are_listed_once_written_in_the_order_of_their_keys(store: Store, ada: MemorySession) -> None:
    assert list(await store.scopes()) == []  # type: ignore[attr-defined]
    await ada.recall("tea")
    await ada.list()
    await refusal(ada.retract("unknown"))
    assert list(await store.scopes()) == []  # type: ignore[attr-defined]
    several = [
        Scope(user_id="\U0001f600"), BOB, Scope(chat_id="c"), ADA, Scope(user_id="\uffff"),
        Scope(user_id="a", run_id="r"),
    ]  # fmt: skip
    for scope in several:
        await open_memory(store, scope).remember("tea")
    await ada.forget_scope()
    assert list(await store.scopes()) == sorted(several, key=lambda scope: scope.key)  # type: ignore[attr-defined]


async def test_a_scope_that_was_never_written_is_empty(bob: MemorySession, ada: MemorySession) -> None:
    await bob.remember("tea", id="bobs")
    assert await ada.scope_revision() == 0
    assert await ada.count() == 0
    assert await ada.get("bobs") is None
    assert await ada.history("bobs") == []
    assert await ada.receipt("op") is None
    page = await ada.list()
    assert (page.records, page.cursor) == ((), None)
    for arguments in ({}, {"at_scope_revision": 0}, {"recorded_as_of": START}):
        assert await ada.recall("tea", **arguments) == []
        assert await ada.recall(**arguments) == []


# ------------------------------------------------------------------------------------------------------------ get


async def test_get_gives_the_current_revision_retracted_or_not(ada: MemorySession) -> None:
    record = (await ada.remember("tea")).records[0]
    revised = (await ada.revise(record.id, text="coffee")).records[0]
    assert await ada.get(record.id) == revised
    gone = (await ada.retract(record.id)).records[0]
    assert await ada.get(record.id) == gone
    assert await ada.get("unknown") is None


async def test_history_is_oldest_first_and_empty_for_an_unknown_id(ada: MemorySession) -> None:
    record = (await ada.remember("tea")).records[0]
    await ada.revise(record.id, text="coffee")
    assert [(r.revision, r.text) for r in await ada.history(record.id)] == [(1, "tea"), (2, "coffee")]
    assert await ada.history("unknown") == []


async def test_an_id_is_matched_as_it_is(ada: MemorySession) -> None:
    await ada.remember("tea", id="a_b")
    for record_id in ("a%", "aXb", "A_B", "a_b ", "a_", "' or 1=1 --", "[1]", "1", "null", '"a_b"'):
        assert await ada.get(record_id) is None
        assert await ada.history(record_id) == []


# ---------------------------------------------------------------------------------------------------------- expiry


async def test_from_the_instant_it_expires_a_record_is_hidden(ada: MemorySession, clock: Clock) -> None:
    record = (await ada.remember("tea", ttl=timedelta(seconds=10))).records[0]
    assert record.expires_at == START + timedelta(seconds=10)
    clock.step(seconds=10, microseconds=-1)
    assert await ada.get(record.id) == record
    assert (ids(await ada.recall("tea")), ids(await ada.recall()), await ada.count()) == (["r1"], ["r1"], 1)
    assert ids((await ada.list()).records) == ["r1"]
    clock.step(microseconds=1)
    assert await ada.get(record.id) is None
    assert (await ada.recall("tea"), await ada.recall(), await ada.count()) == ([], [], 0)
    for status in ("active", None):
        assert (await ada.list(status=status)).records == ()  # type: ignore[arg-type]
    assert await ada.history(record.id) == [record]
    assert ids(await ada.recall("tea", include_expired=True)) == ["r1"]
    assert ids(await ada.recall("tea", recorded_as_of=START + timedelta(seconds=10, microseconds=-1))) == ["r1"]
    assert await ada.recall("tea", recorded_as_of=START + timedelta(seconds=10)) == []
    assert ids(await ada.recall("tea", at_scope_revision=1)) == ["r1"]
    assert (await ada.revise(record.id, kind="working")).records[0].expires_at == record.expires_at


async def test_an_expired_record_stays_expired_unless_a_ttl_is_given(ada: MemorySession, clock: Clock) -> None:
    record = (await ada.remember("tea", ttl=timedelta(seconds=1))).records[0]
    now = clock.step(hours=1)
    await ada.revise(record.id, text="coffee")
    await ada.retract(record.id)
    await ada.revise(record.id)
    assert (await ada.get(record.id), await ada.count(), await ada.recall("coffee")) == (None, 0, [])
    await ada.revise(record.id, ttl=timedelta(seconds=5))
    kept = await ada.get(record.id)
    assert kept is not None
    assert (kept.expires_at, await ada.count()) == (now + timedelta(seconds=5), 1)
    clock.step(seconds=5)
    assert await ada.count() == 0
    await ada.revise(record.id, ttl=None)
    assert (await ada.count(), texts(await ada.recall("coffee"))) == (1, ["coffee"])


async def test_pages_and_hits_fill_with_live_records(ada: MemorySession, clock: Clock) -> None:
    for n in range(30):
        await ada.remember(f"tea {n}", ttl=None if n % 3 else timedelta(seconds=1))
        if n % 3 == 1:
            await ada.retract(f"r{n + 1}")
    clock.step(seconds=1)
    assert len((await ada.list(limit=10)).records) == 10
    assert len(await ada.recall("tea", top_k=10)) == 10
    assert len(await ada.recall(top_k=10)) == 10
    assert await ada.count() == 10
    assert await all_pages(ada, limit=4) == [f"r{n}" for n in range(30, 0, -3)]


# ------------------------------------------------------------------------------------------------- a clock's steps


async def test_a_clock_that_steps_back_reorders_nothing(ada: MemorySession, clock: Clock) -> None:
    record = (await ada.remember("one")).records[0]
    clock.step(seconds=-2)
    await ada.revise(record.id, text="two", ttl=timedelta(seconds=1))
    await ada.revise(record.id, text="three", ttl=None)
    clock.step(days=-400)
    receipt = (await ada.remember("other")).receipt
    history = await ada.history(record.id)
    assert [(r.revision, r.text) for r in history] == [(1, "one"), (2, "two"), (3, "three")]
    assert [r.recorded_at for r in history] == [START] * 3
    assert (receipt.committed_at, history[1].expires_at) == (START, START + timedelta(seconds=1))
    assert [r.scope_revision for r in history] == [1, 2, 3]
    assert texts(await ada.recall(recorded_as_of=START)) == ["other", "three"]
    assert await ada.recall(recorded_as_of=START - timedelta(microseconds=1)) == []


async def test_a_clock_that_steps_back_brings_nothing_that_expired_back(ada: MemorySession, clock: Clock) -> None:
    await ada.remember("tea", ttl=timedelta(seconds=10))
    clock.step(seconds=10)
    await ada.remember("coffee")
    clock.step(seconds=-9)
    assert texts(await ada.recall()) == ["coffee"]
    assert (await ada.get("r1"), await ada.count()) == (None, 1)
    assert ids((await ada.list()).records) == ["r2"]
    assert await ada.recall("tea") == []


async def test_each_scope_has_its_own_last_stamp(ada: MemorySession, bob: MemorySession, clock: Clock) -> None:
    await ada.remember("tea")
    earlier = clock.step(hours=-1)
    assert (await bob.remember("tea")).records[0].recorded_at == earlier
    assert (await ada.remember("tea")).records[0].recorded_at == START


async def test_stamps_are_the_stores_to_the_microsecond_and_in_utc(ada: MemorySession, clock: Clock) -> None:
    clock.now = (START + timedelta(microseconds=123457)).astimezone(tz=_tz(8))
    record = (await ada.remember("tea", ttl=timedelta(microseconds=1))).records[0]
    kept = (await ada.history(record.id))[0]
    for one in (record, kept):
        assert one.recorded_at == one.created_at == START + timedelta(microseconds=123457)
        assert one.expires_at == START + timedelta(microseconds=123458)
        assert one.recorded_at.utcoffset() == timedelta(0)


def _tz(hours: int):
    from datetime import timezone

    return timezone(timedelta(hours=hours))


async def test_a_clock_that_gives_no_aware_instant_is_refused(ada: MemorySession, clock: Clock) -> None:
    await ada.remember("tea")
    for now in (START.replace(tzinfo=None), None, 1.5):
        clock.now = now
        for error in await refusals(
            ada.remember("tea", operation_id="op"), ada.recall("tea"), ada.count(), ada.list(), ada.get("x")
        ):
            assert isinstance(error, InvalidRequestError)
            assert error.path == "clock()"
    clock.now = START
    assert await ada.scope_revision() == 1


# ----------------------------------------------------------------------------------------------------------- list


async def test_list_is_in_order_of_creation_whatever_was_revised(ada: MemorySession) -> None:
    await ada.remember_many([Draft("a", "a"), Draft("b", "b")])
    await ada.remember("c", id="c")
    await ada.revise("a", text="a2")
    assert ids((await ada.list()).records) == ["c", "b", "a"]
    assert texts((await ada.list()).records) == ["c", "b", "a2"]


async def test_list_filters_by_kind_origin_and_status(ada: MemorySession) -> None:
    kinds, origins = ("semantic", "episodic", "working", "procedural"), ("asserted", "inferred")
    for kind, origin in itertools.product(kinds, origins):
        for status in ("active", "retracted"):
            await ada.remember("x", id=f"{kind} {origin} {status}", kind=kind, origin=origin)  # type: ignore[arg-type]
            if status == "retracted":
                await ada.retract(f"{kind} {origin} {status}")
    everyone = await all_pages(ada, status=None)
    assert len(everyone) == 16
    for kind, origin, status in itertools.product((*kinds, None), (*origins, None), ("active", "retracted", None)):
        wanted = {kind, origin, status} - {None}
        expected = [one for one in everyone if wanted <= set(one.split())]
        assert await all_pages(ada, kind=kind, origin=origin, status=status, limit=3) == expected


async def test_pages_lose_and_double_nothing_while_others_write(ada: MemorySession, bob: MemorySession) -> None:
    for n in range(10):
        await ada.remember(f"fact {n}", id=f"f{n}")
    first = await ada.list(limit=3)
    await ada.remember("late", id="late")
    await ada.revise("f5", text="revised")
    await ada.revise("f9", text="revised")
    await ada.forget("f6")
    await ada.retract("f4")
    await bob.remember("of Bob")
    second = await ada.list(limit=3, cursor=first.cursor)
    await ada.forget("f3")
    third = await ada.list(limit=50, cursor=second.cursor)
    assert ids(first.records) == ["f9", "f8", "f7"]
    assert ids(second.records) == ["f5", "f3", "f2"]
    assert ids(third.records) == ["f1", "f0"]
    assert third.cursor is None


async def test_the_last_page_has_no_cursor_even_if_it_is_full(ada: MemorySession) -> None:
    for n in range(4):
        await ada.remember(f"fact {n}")
    first = await ada.list(limit=2)
    assert first.cursor is not None
    assert (await ada.list(limit=2, cursor=first.cursor)).cursor is None
    assert (await ada.list(limit=4)).cursor is None
    assert await all_pages(ada, limit=1) == ["r4", "r3", "r2", "r1"]


async def test_a_cursor_may_go_on_with_another_limit(ada: MemorySession) -> None:
    await ada.remember_many([Draft(f"fact {n}") for n in range(6)])
    first = await ada.list(limit=2)
    assert ids((await ada.list(limit=3, cursor=first.cursor)).records) == ["r4", "r3", "r2"]


async def test_a_cursor_is_bound_to_its_scope_and_filters(ada: MemorySession, bob: MemorySession) -> None:
    for memory in (ada, bob):
        await memory.remember_many([Draft(f"fact {n}") for n in range(4)])
    cursor = (await ada.list(limit=2)).cursor
    attempts = [
        bob.list(cursor=cursor), ada.list(cursor=cursor, kind="semantic"), ada.list(cursor=cursor, origin="asserted"),
        ada.list(cursor=cursor, status=None), ada.list(cursor=cursor, status="retracted"),
    ]  # fmt: skip
    assert cursor is not None
    broken = [
        "",
        "x",
        "\u00e9",
        cursor[:-1],
        cursor[::-1],
        "A" * len(cursor),
        cursor + cursor,
        "\ud800",
        "\x00",
    ]
    attempts += [ada.list(cursor=wrong) for wrong in broken]
    attempts += [ada.list(cursor=wrong) for wrong in (7, b"x", True)]  # type: ignore[arg-type]
    for error in await refusals(*attempts):
        assert isinstance(error, InvalidRequestError)
        assert error.path == "cursor"


async def test_a_forged_cursor_shows_nothing_of_another_scope(ada: MemorySession, bob: MemorySession) -> None:
    await ada.remember("of Ada")
    await bob.remember_many([Draft("of Bob"), Draft("of Bob too")])
    for number in (0, 1, 2, 2**31, 2**32, 2**32 + 1, 2**32 + 2, 2**33 + 5, 2**40, 2**48 - 1):
        forged = cursors.make(number, ada.scope.key, (None, None, "active"))
        page = await ada.list(cursor=forged)
        assert texts(page.records) == ([] if number == 0 else ["of Ada"])


@pytest.mark.parametrize(
    ("verb", "arguments", "path"),
    [
        ("list", {"limit": 0}, "limit"), ("list", {"limit": 1001}, "limit"), ("list", {"limit": True}, "limit"),
        ("list", {"limit": "5"}, "limit"), ("list", {"limit": 2.0}, "limit"), ("list", {"kind": "Semantic"}, "kind"),
        ("list", {"origin": "host"}, "origin"), ("list", {"status": "expired"}, "status"),
        ("list", {"status": ""}, "status"),
        ("get", {"record_id": ""}, "record_id"), ("get", {"record_id": None}, "record_id"),
        ("history", {"record_id": " "}, "record_id"), ("history", {"record_id": "a" * 513}, "record_id"),
        ("receipt", {"operation_id": "\x00"}, "operation_id"), ("receipt", {"operation_id": 1}, "operation_id"),
    ],
    ids=range(15),
)  # fmt: skip
async def test_wrong_arguments_of_reads_are_named(ada: MemorySession, verb: str, arguments, path: str) -> None:
    error = await refusal(getattr(ada, verb)(**arguments))
    assert isinstance(error, InvalidRequestError)
    assert isinstance(error, ValueError)
    assert (error.code, error.path) == ("invalid_request", path)
    assert str(error).startswith(f"{path}: ")


async def test_limits_of_one_and_a_thousand_are_taken(ada: MemorySession) -> None:
    await ada.remember_many([Draft(f"tea {n}") for n in range(1001)])
    assert len((await ada.list(limit=1000)).records) == 1000
    assert len((await ada.list(limit=1)).records) == 1
    assert len(await ada.recall("tea", top_k=1000)) == 1000
    assert len(await ada.recall("tea", top_k=1)) == 1


async def test_a_closed_store_refuses_everything(store: Store, ada: MemorySession, seeing: MemorySession) -> None:
    await ada.remember("tea", id="a")
    await store.close()
    await store.close()
    for error in await refusals(
        ada.remember("x"), ada.remember_many([]), ada.revise("a", text="x"), ada.retract("a"), ada.forget("a"),
        ada.forget_scope(), ada.recall("tea"), ada.recall(), ada.get("a"), ada.history("a"), ada.list(), ada.count(),
        ada.receipt("op"), ada.scope_revision(), store.scopes(), store.scrub(), store.embeddings.active(),
        ada.recall("tea", at_scope_revision=1), seeing.remember("x", operation_id="op"), store.scope_revision(ADA),
    ):  # fmt: skip
        assert isinstance(error, StoreUnavailableError)
        assert (error.code, error.retryable) == ("store_unavailable", False)
