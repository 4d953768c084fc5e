"""Export and import of a scope's whole history: nothing is lost on the way, and what is not whole writes nothing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from fake_models import user
from fakes import ADA, BOB, Clock, FakeEmbedder, everything, ids, open_memory, refusal, texts

from vmem_core import (
    Draft,
    ImportResult,
    InMemoryStore,
    InvalidRequestError,
    Link,
    MemorySession,
    RecordConflictError,
    Scope,
    Source,
    Store,
    UnsupportedError,
    export_jsonl,
    import_jsonl,
    text_digest,
)
from vmem_core.portable import Header, MessagePart, Part, Reader, ReceiptPart, RecordPart, RevisionPart, Writer

TEA = Source("user", text_digest("tea"), message_id="m1", chat_id="c1")


async def lines(store: Store, scope: Scope = ADA) -> list[str]:
    return [line async for line in export_jsonl(store, scope)]


async def live(memory: MemorySession, clock: Clock) -> None:
    """A scope in which everything has happened that can."""
    await memory.remember(
        "Ada likes tea\u2028and \x85 cake", id="tea", sources=[TEA], operation_id="tea 1", links=[Link("about", "x")],
        metadata={"n": 1.0, "b": [True, None, 2**53 + 1]}, importance=0.5,
    )  # fmt: skip
    await memory.remember_many([Draft("Ada owns a boat", "boat"), Draft("secret", "gone")], operation_id="many")
    clock.step(minutes=1)
    await memory.revise("tea", text="Ada likes coffee", operation_id="tea 2")
    await memory.remember("Ada likes coffee", supersede="skip_equal", operation_id="met")
    await memory.remember("expires", id="brief", ttl=timedelta(hours=1), kind="episodic")
    await memory.revise("boat", text="Ada owns a ship")
    await memory.retract("boat", operation_id="retract")
    await memory.forget("gone", operation_id="forget")
    await memory.extract([user("msg 2", "read"), user("msg 1", "also read")], infer=False, operation_id="extract")
    clock.step(minutes=1)
    await memory.store.prune_history(clock.now)


SEEN = ("tea", "boat", "gone", "brief", "r1")
OPERATIONS = ("tea 1", "tea 2", "many", "met", "retract", "forget", "extract")


async def test_a_scope_that_is_exported_and_imported_is_the_same_for_every_caller(
    store: Store, ada: MemorySession, clock: Clock
) -> None:
    await live(ada, clock)
    exported = await lines(store)
    copy = InMemoryStore(clock=clock)
    assert await import_jsonl(copy, exported) == ImportResult(6, 6, 0, {})
    other = open_memory(copy)
    assert await lines(copy) == exported
    assert await everything(other, *SEEN) == await everything(ada, *SEEN)
    for name in OPERATIONS:
        assert await other.receipt(name) == await ada.receipt(name)
    for revision in range(9):
        then = await ada.recall("Ada likes", at_scope_revision=revision, top_k=50, include_retracted=True)
        assert await other.recall("Ada likes", at_scope_revision=revision, top_k=50, include_retracted=True) == then
    assert list(await copy.scopes()) == [ADA]


async def test_what_is_imported_lives_on_like_what_was_exported(store: Store, clock: Clock) -> None:
    origin = InMemoryStore(clock=clock)
    await live(open_memory(origin), clock)
    exported = await lines(origin)
    await import_jsonl(store, exported)
    assert await lines(store) == exported
    memory = open_memory(store)
    replay = await memory.revise("tea", text="Ada likes coffee", operation_id="tea 2")
    assert (replay.replayed, texts(replay.records)) == (True, ["Ada likes coffee"])
    assert (await refusal(memory.revise("tea", text="other", operation_id="tea 2"))).code == "operation_conflict"
    assert (await memory.remember("anything", operation_id="many")).replayed
    met = await memory.remember("Ada likes coffee", supersede="skip_equal", operation_id="met")
    assert (met.replayed, ids(met.present)) == (True, ["tea"])
    assert (await memory.forget("gone", operation_id="forget")).already_forgotten
    assert (await refusal(memory.remember("again", id="gone"))).code == "record_conflict"
    read = await memory.extract([user("msg 1", "also read"), user("msg 3", "new")], infer=False)
    assert texts(read.records) == ["new"]
    assert ids(await memory.recall("coffee")) == ["tea"]
    assert (await memory.revise("boat")).records[0].revision == 4
    forgotten = await memory.forget("tea")
    assert forgotten.revisions == (1, 2)
    for name in ("tea 1", "tea 2", "met"):
        receipt = await memory.receipt(name)
        assert receipt is not None
        assert receipt.redacted
    clock.step(hours=2)
    assert await memory.get("brief") is None


async def test_an_imported_scope_is_embedded_anew_and_only_where_somebody_asks_for_it(
    store: Store, embedder: FakeEmbedder, clock: Clock
) -> None:
    origin = InMemoryStore(clock=clock)
    seeing = open_memory(origin, embedder=embedder)
    await seeing.remember("Ada likes tea", id="tea")
    await seeing.revise("tea", text="Ada likes coffee")
    exported = await lines(origin)
    assert not any("vector" in line for line in exported)
    await import_jsonl(store, exported)
    assert await store.embeddings.active() is None
    memory = open_memory(store, embedder=embedder)
    assert [(hit.record.id, hit.match) for hit in await memory.recall("coffee")] == [("tea", "lexical")]
    await memory.revise("tea", text="Ada likes juice")
    assert [(hit.record.id, hit.match) for hit in await memory.recall("juice")] == [("tea", "hybrid")]


async def test_a_scope_that_was_never_written_is_an_export_too(store: Store) -> None:
    exported = await lines(store, BOB)
    assert [next(iter(json.loads(line))) for line in exported] == ["format", "end"]
    assert await import_jsonl(store, exported) == ImportResult(0, 0, 0, {})
    assert list(await store.scopes()) == []


async def test_an_export_goes_only_into_a_scope_that_was_never_written(store: Store, ada: MemorySession) -> None:
    await ada.remember("tea", id="tea")
    exported = await lines(store)
    before = await everything(ada, "tea")
    error = await refusal(import_jsonl(store, exported))
    assert isinstance(error, InvalidRequestError)
    assert str(error).startswith("scope: is at revision 1, ")
    assert await everything(ada, "tea") == before


@pytest.mark.parametrize("held", ["held", "forgotten"])
async def test_an_id_that_another_scope_has_refuses_the_whole_export(
    store: Store, bob: MemorySession, clock: Clock, held: str
) -> None:
    origin = InMemoryStore(clock=clock)
    await open_memory(origin).remember_many([Draft("one", "a"), Draft("two", "b"), Draft("three", "c")])
    exported = await lines(origin)
    await bob.remember("Bob's", id="b")
    if held == "forgotten":
        await bob.forget("b")
    error = await refusal(import_jsonl(store, exported))
    assert isinstance(error, RecordConflictError)
    assert error.record_id == "b"
    assert await store.scope_revision(ADA) == 0
    assert list(await store.scopes()) == [BOB]
    assert (await open_memory(store).remember("free", id="a")).records[0].revision == 1


def _without(number: int) -> Callable[[list[str]], list[str]]:
    return lambda given: given[:number] + given[number + 1 :]


def _changed(number: int, old: str, new: str) -> Callable[[list[str]], list[str]]:
    def change(given: list[str]) -> list[str]:
        assert old in given[number]
        return [line.replace(old, new) if place == number else line for place, line in enumerate(given)]

    return change


SPOILT: dict[str, Callable[[list[str]], list[str]]] = {
    "empty": lambda given: [],
    "no header": _without(0),
    "no end": lambda given: given[:-1],
    "cut": lambda given: given[:4],
    "cut in a line": lambda given: [*given[:-3], given[-3][:20]],
    "a line missing": _without(2),
    "a line twice": lambda given: [*given[:3], given[2], *given[3:]],
    "lines swapped": lambda given: [given[0], given[2], given[1], *given[3:]],
    "sections swapped": lambda given: [given[0], *reversed(given[1:-1]), given[-1]],
    "a line after the end": lambda given: [*given, given[1]],
    "a word changed": _changed(3, "Ada likes tea", "Ada likes rum"),
    "a revision beyond the scope's": _changed(3, '"scope_revision":1', '"scope_revision":99'),
    "a wrong time": _changed(3, '"recorded_at":', '"recorded_at":1'),
    "a field of another kind": _changed(3, '"status":"active"', '"status":7'),
    "a field missing": _changed(3, '"links":', '"lonks":'),
    "no JSON": lambda given: [*given[:2], "{", *given[2:]],
    "no object": lambda given: [*given[:2], "[1]", *given[2:]],
    "deep": lambda given: [*given[:2], "[" * 100_000, *given[2:]],
    "of something else": lambda given: ['{"id": "a", "text": "tea"}'],
    "half a header": lambda given: ['{"format": "vmem-export", "version": 1}', *given[1:]],
    "no digest": lambda given: [*given[:-1], '{"end": 7}'],
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT.keys())
async def test_of_an_export_that_is_not_whole_nothing_is_written(
    store: Store, clock: Clock, spoil: Callable[[list[str]], list[str]]
) -> None:
    origin = InMemoryStore(clock=clock)
    memory = open_memory(origin)
    await memory.remember("Ada likes tea", id="tea", operation_id="op")
    await memory.remember("Ada likes cake", id="cake")
    error = await refusal(import_jsonl(store, spoil(await lines(origin))))
    assert isinstance(error, InvalidRequestError)
    assert "Ada likes" not in str(error)
    assert error.path.startswith("lines[")
    assert list(await store.scopes()) == []
    assert (await open_memory(store).remember("free", id="tea")).receipt.scope_revision == 1


def revised(*numbers: int, current: Sequence[int] = (-1,), place: int = 0) -> Callable[[list[Part]], list[Part]]:
    """The revisions of a record have these numbers instead; those at the places in ``current`` are said to be so."""

    def change(parts: list[Part]) -> list[Part]:
        first = next(part for part in parts if isinstance(part, RevisionPart) and part.record is not None)
        assert first.record is not None
        chosen = [range(len(numbers))[one] for one in current]
        made: list[Part] = [
            replace(
                first, place=place, revision=number, current=at in chosen, record=replace(first.record, revision=number)
            )
            for at, number in enumerate(numbers)
        ]
        kept = [part for part in parts if not isinstance(part, RevisionPart) or part.place]
        after = sum(isinstance(part, RecordPart) for part in parts)
        return [*kept[:after], *made, *kept[after:]]

    return change


def made_of(header: Header, parts: Sequence[Part]) -> list[str]:
    """An export that somebody else has put together: counts and digest fit."""
    kinds = Counter(type(part) for part in parts)
    counts = {"revisions": kinds[RevisionPart], "receipts": kinds[ReceiptPart], "messages": kinds[MessagePart]}
    writer = Writer()
    return [
        writer.header(replace(header, records=kinds[RecordPart], **counts)),
        *(writer.part(part) for part in parts),
        writer.end(),
    ]


def read(exported: Sequence[str]) -> tuple[Header, list[Part]]:
    reader = Reader()
    parts = [part for part in map(reader.read, exported) if part is not None]
    return reader.finish(), parts


def twice(kind: type[Part], change: Callable[[Any, Any], Part]) -> Callable[[list[Part]], list[Part]]:
    """The second part of a kind is changed by what the first one is."""

    def spoil(parts: list[Part]) -> list[Part]:
        first, second = [at for at, part in enumerate(parts) if isinstance(part, kind)][:2]
        return [*parts[:second], change(parts[second], parts[first]), *parts[second + 1 :]]

    return spoil


def with_id_of(part: ReceiptPart, first: ReceiptPart) -> Part:
    receipt = replace(part.stored.receipt, operation_id=first.stored.receipt.operation_id)
    return ReceiptPart(replace(part.stored, receipt=receipt), part.mentions)


HOLED: dict[str, Callable[[list[Part]], list[Part]]] = {
    "a hole": revised(1, 3),
    "no first one": revised(2, 3),
    "one twice": revised(1, 1),
    "backwards": revised(2, 1),
    "none": revised(current=()),
    "none that is current": revised(1, 2, current=()),
    "two that are current": revised(1, 2, current=(0, 1)),
    "one after the current": revised(1, 2, current=(0,)),
    "of a forgotten record": revised(1, place=2),
    "of a record that is not there": lambda parts: [parts[0], *parts[2:]],
    "a record's id twice": twice(RecordPart, lambda part, first: replace(part, record_id=first.record_id)),
    "a forgotten record's id twice": lambda parts: [RecordPart("gone", 1), *parts[1:]],
    "an operation twice": twice(ReceiptPart, lambda part, first: first),
    "an operation's id twice": twice(ReceiptPart, with_id_of),
    "a message twice": lambda parts: [*parts, MessagePart("m"), MessagePart("m")],
    "messages in another order": lambda parts: [*parts, MessagePart("n"), MessagePart("m")],
    "a record met twice": twice(ReceiptPart, lambda part, first: replace(part, mentions=(0, 0))),
}


@pytest.mark.parametrize("spoil", HOLED.values(), ids=HOLED.keys())
async def test_an_export_whose_parts_do_not_follow_each_other_or_stand_twice_is_refused_whole(
    store: Store, clock: Clock, spoil: Callable[[list[Part]], list[Part]]
) -> None:
    origin = InMemoryStore(clock=clock)
    memory = open_memory(origin)
    await memory.remember_many([Draft("Ada likes tea", "tea"), Draft("Ada likes cake", "cake"), Draft("x", "gone")])
    await memory.revise("tea", text="Ada likes coffee")
    await memory.forget("gone")
    header, parts = read(await lines(origin))
    assert made_of(header, parts) == await lines(origin)
    error = await refusal(import_jsonl(store, made_of(header, spoil(parts))))
    assert isinstance(error, InvalidRequestError)
    assert error.path.startswith("lines[")
    assert "Ada likes" not in str(error)
    assert list(await store.scopes()) == []
    whole = made_of(header, revised(1, 2, 3)(parts))
    assert (await import_jsonl(store, whole)).imported == 3
    assert [record.revision for record in await open_memory(store).history("tea")] == [1, 2, 3]


async def test_an_id_that_stands_twice_in_an_export_is_told_with_its_line(store: Store, clock: Clock) -> None:
    origin = InMemoryStore(clock=clock)
    await open_memory(origin).remember_many([Draft("one", "a"), Draft("two", "b")])
    header, parts = read(await lines(origin))
    error = await refusal(import_jsonl(store, made_of(header, HOLED["a record's id twice"](parts))))
    assert str(error) == (
        "lines[2]: holds the id of a record that an earlier line holds; nothing was imported: export the scope again"
    )


async def pruned(store: Store, clock: Clock) -> list[str]:
    """An export of three records of three or four revisions, whose first ones are no longer kept."""
    memory = open_memory(store)
    for name in ("over", "back", "alive"):
        await memory.remember(f"{name} one", id=name)
        await memory.revise(name, text=f"{name} two")
    await memory.retract("over")
    await memory.retract("back")
    clock.step(minutes=1)
    assert await store.prune_history(clock.now) == 4
    await memory.revise("back")
    await store.scrub()
    return await lines(store)


async def test_a_prune_takes_no_revision_out_of_an_export_and_what_it_left_comes_back_as_it_was(
    store: Store, ada: MemorySession, clock: Clock
) -> None:
    exported = await pruned(store, clock)
    _, parts = read(exported)
    kept = [(part.place, part.revision, part.record is not None) for part in parts if isinstance(part, RevisionPart)]
    assert sorted(kept) == [
        (0, 1, False), (0, 2, False), (0, 3, True), (1, 1, False), (1, 2, False), (1, 3, True), (1, 4, True),
        (2, 1, True), (2, 2, True),
    ]  # fmt: skip
    copy = InMemoryStore(clock=clock)
    await import_jsonl(copy, exported)
    assert await lines(copy) == exported
    names = ("over", "back", "alive")
    assert await everything(open_memory(copy), *names) == await everything(ada, *names)


async def test_an_export_of_a_pruned_scope_goes_into_any_store(store: Store, clock: Clock) -> None:
    origin = InMemoryStore(clock=clock)
    exported = await pruned(origin, clock)
    await import_jsonl(store, exported)
    assert await lines(store) == exported
    clock.step(minutes=1)
    assert await store.prune_history(clock.now) == await origin.prune_history(clock.now) == 0
    memory = open_memory(store)
    assert [record.revision for record in await memory.history("back")] == [3, 4]
    await memory.retract("back")
    clock.step(minutes=1)
    assert await store.prune_history(clock.now) == 2
    assert [record.revision for record in await memory.history("back")] == [5]


async def test_a_newer_version_of_the_format_is_refused_by_its_number(store: Store) -> None:
    exported = await lines(store)
    newer = exported[0].replace('"version":1', '"version":2')
    error = await refusal(import_jsonl(store, [newer, *exported[1:]]))
    assert isinstance(error, UnsupportedError)
    assert str(error) == "the export is of version 2, this library reads up to 1; upgrade it"


async def test_lines_may_come_without_their_breaks_with_others_or_one_by_one(store: Store, clock: Clock) -> None:
    origin = InMemoryStore(clock=clock)
    await live(open_memory(origin), clock)
    exported = await lines(origin)
    for made in (
        [line.rstrip("\n") for line in exported],
        [line.rstrip("\n") + "\r\n" for line in exported],
        "".join(exported).splitlines(),
        [*exported, "\n", " "],
        iter(exported),
        export_jsonl(origin, ADA),
    ):
        copy = InMemoryStore(clock=clock)
        await import_jsonl(copy, made)
        assert await lines(copy) == exported
    await import_jsonl(store, export_jsonl(origin, ADA))
    assert await lines(store) == exported


async def test_an_export_is_of_one_moment_whoever_writes_meanwhile(store: Store, ada: MemorySession) -> None:
    await ada.remember_many([Draft(f"fact {n}", f"a{n}") for n in range(30)])
    before = await lines(store)
    export = export_jsonl(store, ADA)
    seen = [await anext(export), await anext(export)]
    await ada.revise("a3", text="changed")
    await ada.forget("a5")
    await ada.remember("new")
    seen += [line async for line in export]
    assert seen == before
    assert await lines(store) != before


async def test_an_export_that_nobody_reads_to_its_end_holds_nothing(store: Store, ada: MemorySession) -> None:
    await ada.remember("tea", id="tea")
    export = export_jsonl(store, ADA)
    await anext(export)
    await export.aclose()  # type: ignore[attr-defined]
    assert (await ada.forget("tea")).receipt.scope_revision == 2
    await store.scrub()


async def test_a_source_of_lines_that_fails_leaves_nothing(store: Store, ada: MemorySession, clock: Clock) -> None:
    origin = InMemoryStore(clock=clock)
    await open_memory(origin).remember_many([Draft(f"fact {n}") for n in range(1_500)])
    exported = await lines(origin)

    async def failing() -> AsyncIterator[str]:
        for line in exported[:-1]:
            yield line
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        await import_jsonl(store, failing())
    assert list(await store.scopes()) == []
    await ada.remember("still works")
    assert await ada.scope_revision() == 1


@pytest.mark.parametrize(
    ("given", "path"), [("one string", "lines"), (b"x", "lines"), (None, "lines"), ([b"{}"], "lines"), ([1], "lines")]
)
async def test_what_is_no_iterable_of_lines_is_refused(store: Store, given: Any, path: str) -> None:
    error = await refusal(import_jsonl(store, given))
    assert isinstance(error, InvalidRequestError)
    assert error.path == path


async def test_an_export_of_no_scope_or_no_store_is_refused(store: Store) -> None:
    for source in (export_jsonl(store, {"user_id": "ada"}), export_jsonl(None, ADA)):  # type: ignore[arg-type]
        assert isinstance(await refusal(anext(source)), InvalidRequestError)  # type: ignore[arg-type]
