"""Forget means gone: the bytes of every file of a SQLite store, searched for what only a forgotten record held."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from fakes import ADA, BOB, FakeEmbedder, open_memory
from processes import Script, run_script
from sqlite_fakes import SEARCHER, Disk, look, names, needle

from vmem_core import (
    Draft,
    Embeddings,
    Link,
    MemorySession,
    Scope,
    Source,
    SqliteStore,
    text_digest,
)
from vmem_core.tokens import token_hashes

_WORDS = [f"{first}{second}{third}" for first in "bdfk" for second in "aeiou" for third in ("lm", "rst", "xy")]


@pytest.fixture
def disk(path: Path) -> Iterator[Disk]:
    with Script(SEARCHER, path, library=False) as searcher:
        yield Disk(searcher)


class HashEmbedder:
    """A vector of a text from one hash: quick."""

    def embed(self, texts: Sequence[str], *, purpose: str) -> Embeddings:
        rows = [[byte - 127.5 for byte in hashlib.sha256(text.encode()).digest()[:16]] for text in texts]
        return Embeddings(rows, "hash")


class Churn:
    """Writes, revises, retracts and forgets at random over five scopes of one file, each revision with its needle.

    Args:
        store: The store.
        seed: Of the random choices.
    """

    def __init__(self, store: SqliteStore, seed: int) -> None:
        self.random, self.store = random.Random(seed), store
        embedder = HashEmbedder()
        scopes = [ADA, BOB, *(Scope(user_id=f"user {n}", chat_id="c") for n in range(3))]
        self.sessions = [open_memory(store, scope, embedder=embedder) for scope in scopes]
        self.living: dict[str, tuple[MemorySession, list[int]]] = {}
        self.gone: set[int] = set()
        self.next = 0

    def text(self) -> tuple[int, str]:
        """A needle and a text around it: most are short, some run over many pages."""
        self.next += 1
        words = self.random.choices(_WORDS, k=self.random.choice((3, 10, 40, 40, 150, 900)))
        # Twice, so that one of the two is whole even if a page ends in the other.
        middle = self.random.randrange(len(words))
        words[middle:middle] = [needle(self.next), "between", needle(self.next)]
        return self.next, " ".join(words)

    async def hurry(self) -> None:
        """Do not wait for the disk: that changes no byte, only when they are safe from a power cut."""
        future = self.store._opened().write(lambda connection: connection.execute("pragma synchronous = off"))
        await asyncio.wrap_future(future)

    async def remember(self, many: int = 1) -> None:
        memory = self.random.choice(self.sessions)
        made = [self.text() for _ in range(many)]
        written = await memory.remember_many([Draft(text, metadata={"about": text[:30]}) for _, text in made])
        for (number, _), record in zip(made, written.records, strict=True):
            self.living[record.id] = (memory, [number])

    async def revise(self) -> None:
        record_id = self.random.choice(list(self.living))
        memory, numbers = self.living[record_id]
        number, text = self.text()
        await memory.revise(record_id, text=text)
        numbers.append(number)

    async def retract(self) -> None:
        record_id = self.random.choice(list(self.living))
        await self.living[record_id][0].retract(record_id)

    async def forget(self) -> None:
        record_id = self.random.choice(list(self.living))
        memory, numbers = self.living.pop(record_id)
        result = await memory.forget(record_id)
        assert result.scrubbed
        self.gone.update(numbers)

    async def step(self) -> None:
        if len(self.living) < 20:
            await self.remember(self.random.choice((1, 1, 5, 20)))
            return
        verbs = (self.remember, self.remember, self.revise, self.retract, self.forget)
        await self.random.choice(verbs)()

    @property
    def kept(self) -> set[int]:
        """The needles of all revisions of the records that are not forgotten."""
        return {number for _, numbers in self.living.values() for number in numbers}


# --- the promise ----------------------------------------------------------------------------------------------------


async def test_of_a_record_forgotten_among_1500_others_no_byte_is_left(path: Path, disk: Disk) -> None:
    """The record was revised twice; the others were written and forgotten at random, before and after."""
    async with SqliteStore(path) as store:
        churn = Churn(store, seed=20_260_301)
        await churn.hurry()
        memory = churn.sessions[0]
        words = ["Xylographer", "щукарь", "quokka-9", "Tlaxcala"]
        while churn.next < 500:
            await churn.step()
        await memory.remember(f"Ada is a {words[0]}. " + "Long. " * 900, id="r1", metadata={"town": words[3]})
        while churn.next < 1_000:
            await churn.step()
        await memory.revise("r1", text=f"Ada fishes for {words[1]}.")
        while churn.next < 1_250:
            await churn.step()
        await memory.revise("r1", text=f"Ada keeps a {words[2]}.", metadata={})
        while churn.next < 1_500:
            await churn.step()
        assert set(disk.holding(*words)) == set(words)  # the search finds what is there
        forgotten = await memory.forget("r1")
        assert (forgotten.revisions, forgotten.scrubbed) == ((1, 2, 3), True)
        assert disk.holding(*words) == {}
        assert len(churn.gone) > 300
        assert disk.needles() == churn.kept  # of the others, too, what was forgotten and nothing else is gone
        await store.scrub()
        assert disk.holding(*words) == {}
        assert disk.needles() == churn.kept
        assert names(path.parent) == ["memory.db", "memory.db-shm", "memory.db-wal"]
        hits = [hit for session in churn.sessions for hit in await session.recall("between", top_k=1000)]
        assert all(hit.record.id in churn.living for hit in hits)
    assert disk.needles() == churn.kept
    assert look(path, "pragma integrity_check") == [("ok",)]


@pytest.mark.parametrize("seed", range(4))
async def test_text_is_gone_from_every_file_after_each_forget_with_no_scrub(path: Path, disk: Disk, seed: int) -> None:
    async with SqliteStore(path) as store:
        churn = Churn(store, seed)
        await churn.hurry()
        looked = 0
        while churn.next < 400:
            before = len(churn.gone)
            await churn.step()
            if len(churn.gone) > before:
                looked += 1
                assert disk.needles() == churn.kept
        assert looked > 30


async def test_text_is_gone_after_the_scope_is_forgotten(path: Path, disk: Disk) -> None:
    async with SqliteStore(path) as store:
        churn = Churn(store, seed=7)
        await churn.hurry()
        for _ in range(40):
            await churn.remember(5)
        forgotten = churn.sessions[0]
        result = await forgotten.forget_scope()
        assert result.scrubbed
        kept = {n for memory, numbers in churn.living.values() if memory is not forgotten for n in numbers}
        assert disk.needles() == kept
        assert len(result.record_ids) + len(kept) == 200


async def test_metadata_sources_links_digests_and_request_go_with_the_text(path: Path, disk: Disk) -> None:
    shared, own = text_digest("a page that two records cite"), text_digest("a page that one record cites")
    secret = Source(
        "tool", own, message_id="message-77", chat_id="chat-77", run_id="run-77", tool_call_id="call-77",
        tool_name="tool-77", uri="https://example.org/77",
    )  # fmt: skip
    text = "Ada was born in Tlaxcala."
    searched = [
        text, "Tlaxcala", own, own.removeprefix("sha256:"), text_digest(text), "message-77", "chat-77", "run-77",
        "call-77", "tool-77", "example.org/77", "key-77", "value-77", "relation-77", "record-77",
    ]  # fmt: skip
    async with SqliteStore(path) as store:
        memory = open_memory(store, embedder=FakeEmbedder(vectors={text: [0.1, 0.2, 0.7, 0.3, 0.9, 0.4, 0.6, 0.5]}))
        await memory.remember("Bob reads.", id="other", sources=[Source("user", shared)])
        await memory.remember(
            text,
            id="r1",
            sources=[secret, Source("user", shared)],
            metadata={"key-77": ["value-77"]},
            links=[Link("relation-77", "record-77")],
            operation_id="k",
        )
        await memory.revise("r1", origin="asserted")
        await memory.revise("r1", metadata={"n": 1}, text=text + " Too.")
        connection = sqlite3.connect(path)
        [(vector, request)] = connection.execute(
            "select vector, request from vmem_vectors_1 v, vmem_receipts r where r.operation_id = 'k' limit 1"
        ).fetchall()
        connection.close()
        hidden = [token_hashes(["tlaxcala"]), request, request[:16], request[16:]]
        assert set(disk.holding(*searched, *hidden, shared)) >= {*searched, *hidden, shared} - {
            text_digest(text)  # sources were given, so that the text's own digest was never a source
        }
        assert len(vector) == 32
        assert (await memory.forget("r1")).scrubbed
        assert disk.holding(*searched) == {}
        await store.scrub()
        assert disk.holding(*searched, *hidden) == {}
        assert disk.holding(shared) == {shared: {"memory.db"}}
        kept = await memory.get("other")
        assert kept is not None
        assert kept.sources == (Source("user", shared),)
        assert (await memory.receipt("k")).redacted


async def test_what_stays_of_a_forgotten_record_is_its_id_its_scope_and_the_revision_of_the_forget(
    path: Path, disk: Disk
) -> None:
    async with SqliteStore(path) as store:
        memory = open_memory(store, embedder=FakeEmbedder())
        await memory.remember("Ada likes tea.", id="r1", kind="episodic", ttl=timedelta(days=9), metadata={"a": 1})
        await memory.revise("r1", text="Ada likes coffee.")
        await memory.forget("r1")
        await store.scrub()
    connection = sqlite3.connect(path)
    connection.row_factory = sqlite3.Row
    [row] = connection.execute("select * from vmem_records").fetchall()
    columns = zip(row.keys(), row, strict=True)
    stays = {name: value for name, value in columns if value not in (None, 0, b"")}
    scope = row["number"] >> 32
    assert stays == {"number": scope << 32, "record_id": "r1", "changed": scope << 32 | 3, "state": -1}
    for table in ("vmem_revisions", "vmem_vectors_1", "vmem_mentions"):
        assert connection.execute(f"select count(*) from {table}").fetchone()[0] == 0
    connection.close()


async def test_the_text_of_a_refused_write_is_gone_after_scrub(path: Path, disk: Disk) -> None:
    async with SqliteStore(path) as store:
        memory = open_memory(store)
        await memory.remember("Ada likes tea.", id="r1")
        writes = [memory.remember(f"{needle(n)} " * 2_000, id="r1") for n in range(8)]
        await asyncio.gather(memory.remember("another"), *writes, return_exceptions=True)
        await store.scrub()
        assert disk.needles() == set()


# --- no file but those three ----------------------------------------------------------------------------------------

# Linux tells which files come into being in a folder, however soon they are gone again.
WATCHER = """
import ctypes, sqlite3, struct

libc = ctypes.CDLL(None, use_errno=True)
watch = libc.inotify_init1(os.O_NONBLOCK)
folders = {libc.inotify_add_watch(watch, folder.encode(), 0x100): folder for folder in ARGS}  # 0x100: created

def created():
    "Files that came into being since the last look."
    names = []
    try:
        data = os.read(watch, 1 << 16)
    except BlockingIOError:
        return names
    while data:
        where, _, _, length = struct.unpack("iIII", data[:16])
        names.append([ARGS.index(folders[where]), data[16 : 16 + length].rstrip(bytes(1)).decode()])
        data = data[16 + length :]
    return names

store = SqliteStore(PATH)
memory = MemorySession(store, SCOPE).sync
memory.remember_many([Draft("Ada likes tea. " * 500, id=f"r{n}") for n in range(300)])
for n in range(0, 60, 2):
    memory.revise(f"r{n}", text="Ada likes coffee. " * 400)
    memory.forget(f"r{n}")
memory.recall("tea", top_k=1000)
store.sync.scrub()
memory.forget_scope()
store.sync.scrub()
store.sync.close()
say(created())

connection = sqlite3.connect(PATH)
connection.execute("pragma temp_store = file")
connection.execute("create table other(x)")
connection.executemany("insert into other values(?)", [("y" * 1000,) for _ in range(5000)])
connection.commit()
connection.execute("vacuum")
connection.close()
say(created())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells of files that come and go")
def test_no_temporary_file_is_ever_made(path: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "temporary"
    elsewhere.mkdir()
    environment = {**os.environ, "SQLITE_TMPDIR": str(elsewhere), "TMPDIR": str(elsewhere)}
    ours, plain = map(json.loads, run_script(WATCHER, path, path.parent, elsewhere, environment=environment))
    assert {name for _, name in ours} == {"memory.db", "memory.db-journal", "memory.db-wal", "memory.db-shm"}
    assert {place for place, _ in ours} == {0}
    assert 1 in {place for place, _ in plain}  # a plain VACUUM does make one: the watch sees it
