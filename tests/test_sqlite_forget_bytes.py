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
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fakes import ADA, BOB, FakeEmbedder, open_memory, refusal, texts
from processes import Script, run_script

from vmem_core import Draft, Embeddings, Link, MemorySession, Scope, Source, SqliteStore, StoreUnavailableError, text_digest
from vmem_core.tokens import token_hashes

SHORT = timedelta(milliseconds=50)
_WORDS = [f"{first}{second}{third}" for first in "bdfk" for second in "aeiou" for third in ("lm", "rst", "xy")]


# What has to be looked for is looked for by another process: to open and close the file here would end the locks that
# the store holds on it, for they belong to the process.
SEARCHER = """
import re
folder = os.path.dirname(PATH)
for line in sys.stdin:
    question = json.loads(line)
    found = []
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), "rb") as file:
            data = file.read()
        if question is None:
            found += {int(number) for number in re.findall(rb"zq(\\d{6})x", data)}
        else:
            lower = data.lower()
            found += [[name, one] for one in question if bytes.fromhex(one) in data or bytes.fromhex(one) in lower]
    say(found)
"""


class Disk:
    """The bytes of whatever lies in the store's folder: the database, its log, its shared memory, its journal."""

    def __init__(self, searcher: Script) -> None:
        self._searcher = searcher

    def _ask(self, question: list[str] | None) -> Any:
        self._searcher.tell(json.dumps(question))
        return json.loads(self._searcher.hear())

    def needles(self) -> set[int]:
        """The numbers of all needles that any file holds."""
        return set(self._ask(None))

    def holding(self, *searched: str | bytes) -> dict[str | bytes, set[str]]:
        """The texts or bytes that are found, a text in any case, and the files they are found in."""
        words = {one: (one.lower().encode() if isinstance(one, str) else one).hex() for one in searched}
        words |= {f"{one} as given": one.encode().hex() for one in searched if isinstance(one, str)}
        found: dict[str | bytes, set[str]] = {}
        for file, inside in self._ask(list(words.values())):
            for one in searched:
                if inside in (words[one], words.get(f"{one} as given")):
                    found.setdefault(one, set()).add(file)
        return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    folder.mkdir()
    return folder / "memory.db"


@pytest.fixture
def disk(path: Path) -> Iterator[Disk]:
    with Script(SEARCHER, path) as searcher:
        yield Disk(searcher)


def needle(number: int) -> str:
    return f"zq{number:06d}x"


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
        assert sorted(os.listdir(path.parent)) == ["memory.db", "memory.db-shm", "memory.db-wal"]
        hits = [hit for session in churn.sessions for hit in await session.recall("between", top_k=1000)]
        assert all(hit.record.id in churn.living for hit in hits)
    assert disk.needles() == churn.kept
    connection = sqlite3.connect(path)
    assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]
    connection.close()


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


async def test_what_stays_of_a_forgotten_record_is_its_id_its_scope_and_the_revision_of_the_forget(path: Path, disk: Disk) -> None:
    async with SqliteStore(path) as store:
        memory = open_memory(store, embedder=FakeEmbedder())
        await memory.remember("Ada likes tea.", id="r1", kind="episodic", ttl=timedelta(days=9), metadata={"a": 1})
        await memory.revise("r1", text="Ada likes coffee.")
        await memory.forget("r1")
        await store.scrub()
    connection = sqlite3.connect(path)
    connection.row_factory = sqlite3.Row
    [row] = connection.execute("select * from vmem_records").fetchall()
    stays = {name: row[name] for name in row.keys() if row[name] not in (None, 0, b"")}
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


# --- readers that hold the log -----------------------------------------------------------------------------------------

READER = """
import sqlite3
connection = sqlite3.connect(PATH, isolation_level=None)
connection.execute("begin")
say(connection.execute("select count(*) from vmem_records").fetchone()[0])
wait()
connection.execute("rollback")
connection.close()
"""


@contextmanager
def reader(path: Path, other_process: bool) -> Iterator[Any]:
    """Somebody who reads an old state of the file; calling what it yields ends that."""
    if other_process:
        with Script(READER, path) as script:
            script.hear()
            yield lambda: (script.tell(), script.end())
    else:
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("begin")
        connection.execute("select count(*) from vmem_records").fetchone()
        yield connection.close
        connection.close()


LATER = {
    "remember": lambda memory: memory.remember("another"),
    "replay": lambda memory: memory.remember("kept", id="r0", operation_id="k"),
    "forget again": lambda memory: memory.forget("r1"),
    "scrub": lambda memory: memory.store.scrub(),
}


@pytest.mark.parametrize("later", LATER)
@pytest.mark.parametrize("other_process", [True, False], ids=["another process", "another connection"])
async def test_a_reader_holds_the_log_and_a_later_operation_scrubs(path: Path, disk: Disk, other_process: bool, later: str) -> None:
    async with SqliteStore(path, busy_timeout=SHORT) as store:
        memory = open_memory(store)
        await memory.remember("kept", id="r0", operation_id="k")
        await memory.remember("Ada likes tea from Tlaxcala.", id="r1")
        with reader(path, other_process) as end:
            result = await memory.forget("r1")
            assert (result.revisions, result.scrubbed) == ((1,), False)
            assert disk.holding("Tlaxcala")["Tlaxcala"] >= {"memory.db-wal"}
            assert await memory.get("r1") is None
            assert not (await memory.forget("r1")).scrubbed
            await memory.remember("while the reader reads")
            assert disk.holding("Tlaxcala")["Tlaxcala"] >= {"memory.db-wal"}
            end()
            await LATER[later](memory)
            assert disk.holding("Tlaxcala") == {}
        assert (await memory.forget("r1")).scrubbed


@pytest.mark.parametrize("other_process", [True, False], ids=["another process", "another connection"])
async def test_scrub_tells_of_a_reader_that_stays_and_works_when_it_is_gone(path: Path, disk: Disk, other_process: bool) -> None:
    async with SqliteStore(path, busy_timeout=SHORT) as store:
        memory = open_memory(store)
        await memory.remember("Ada likes tea from Tlaxcala.", id="r1")
        with reader(path, other_process) as end:
            await memory.forget("r1")
            for _ in range(2):
                error = await refusal(store.scrub())
                assert isinstance(error, StoreUnavailableError)
                assert error.retryable
                assert "reader" in str(error)
            await memory.remember("written meanwhile")
            assert texts(await memory.recall("meanwhile")) == ["written meanwhile"]
            end()
            await store.scrub()
            assert disk.holding("Tlaxcala") == {}
        assert (await memory.forget("r1")).scrubbed


OWING = """
memory = MemorySession(SqliteStore(PATH, busy_timeout=timedelta(milliseconds=50)), SCOPE).sync
say(memory.forget("r1", operation_id="k").scrubbed)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("again", ["k", None])
@pytest.mark.parametrize("opened", [True, False], ids=["a store that was open", "a store opened later"])
async def test_what_a_killed_process_owed_is_scrubbed_by_the_next_forget_of_another(
    path: Path, disk: Disk, opened: bool, again: str | None
) -> None:
    store = SqliteStore(path, busy_timeout=SHORT)
    memory = open_memory(store)
    await memory.remember("Ada likes tea from Tlaxcala.", id="r1")
    await memory.remember("another")
    if not opened:
        await store.close()
    with reader(path, other_process=False) as end:
        with Script(OWING, path) as script:
            assert script.end(-9) == ["false"]
        assert disk.holding("Tlaxcala")
        end()
    if not opened:
        store = SqliteStore(path, busy_timeout=SHORT)
        memory = open_memory(store)
    result = await memory.forget("r1", operation_id=again)
    assert (result.replayed, result.already_forgotten, result.scrubbed) == (again == "k", True, True)
    assert disk.holding("Tlaxcala") == {}
    await store.close()


DYING = """
store = SqliteStore(PATH)
memory = MemorySession(store, SCOPE).sync
armed = False

def probe(step):
    if armed and step == "after commit":
        os.kill(os.getpid(), signal.SIGKILL)

store._probe = probe
memory.remember("Ada likes tea from Tlaxcala.", id="r1")
armed = True
memory.forget("r1")
"""


async def test_the_first_write_after_a_crash_scrubs_what_the_dead_process_owed(path: Path, disk: Disk) -> None:
    with Script(DYING, path) as script:
        assert script.end(-9) == []
    assert disk.holding("Tlaxcala")
    async with SqliteStore(path) as store:
        await open_memory(store).remember("another")
        assert disk.holding("Tlaxcala") == {}


# --- no file but those three ---------------------------------------------------------------------------------------------

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
