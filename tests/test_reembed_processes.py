"""Moving a store while others use it: kills at every step, other processes, and writers and readers in the way."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from fakes import FakeEmbedder, open_memory, refusal
from postgres_server import fresh_schema, server_uri
from processes import Script, run_script
from sqlite_fakes import look, on_writer
from store_suite.reembedding import NewEmbedder

from vmem_core import Draft, EmbeddingMismatchError, Generation, PostgresStore, ReembedResult, SqliteStore

RECORDS, BATCH = 6, 2

# ------------------------------------------------------------------------------------------------------------- killed

# Commit 1 begins the generation, one a batch puts its vectors, the last one switches.
COMMITS = 1 + RECORDS // BATCH + 1
# One process makes all the files, a forked child each: it dies at a step of one of the job's transactions. What an
# embedder was paid for is noted in a file of its own, before it answers.
KILLED = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # later Pythons warn of a fork beside threads

import vmem_core.reembed, vmem_core.stores._generations, vmem_core.stores._sqlite
warm = MemorySession(InMemoryStore(), SCOPE).sync  # what it imports, the children need not
warm.remember("warm")
warm.recall("warm")

RECORDS, BATCH, COMMITS, CONCURRENCY = json.loads(ARGS[0])

class Old:
    def embed(self, texts, *, purpose):
        return Embeddings([[1.0, float(len(text))] for text in texts], "old")

class New:
    def __init__(self, path):
        self.paid = open(path + ".paid", "a")

    async def embed(self, texts, *, purpose):
        print(*texts, sep="\\n", file=self.paid, flush=True)
        return Embeddings([[float(len(text)), 1.0, 2.0, 3.0] for text in texts], "fake-b")

def die(path, commit, last):
    seen = 0

    def probe(step):
        nonlocal seen
        seen += step == "before commit"
        if seen == commit + 1 and step == last:  # the first one writes the records
            os.kill(os.getpid(), signal.SIGKILL)

    store = SqliteStore(path)
    store._probe = probe
    memory = MemorySession(store, SCOPE, embedder=Old()).sync
    memory.remember_many([Draft(f"fact {n}", f"id{n}") for n in range(RECORDS)])
    memory.reembed(embedder=New(path), model_id="fake-b", dims=4, batch_size=BATCH, concurrency=CONCURRENCY)

for commit in range(1, COMMITS + 1):
    for step in ("before commit", "after commit"):
        if (pid := os.fork()) == 0:
            try:
                die(os.path.join(PATH, f"{commit} {step}.db"), commit, step)
            finally:
                os._exit(1)
        say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.fixture(scope="module", params=[1, 3])
def killed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A folder of files, each left by a job that was killed at one step of one transaction; and its concurrency."""
    folder = tmp_path_factory.mktemp("killed")
    given = json.dumps([RECORDS, BATCH, COMMITS, request.param])
    assert run_script(KILLED, folder, given) == ["-9"] * 2 * COMMITS
    return folder, request.param


@pytest.mark.parametrize("step", ["before commit", "after commit"])
@pytest.mark.parametrize("commit", range(1, COMMITS + 1))
async def test_a_job_that_is_killed_goes_on_and_pays_again_for_what_was_in_flight_at_most(
    killed: tuple[Path, int], commit: int, step: str
) -> None:
    folder, concurrency = killed
    path = folder / f"{commit} {step}.db"
    paid_file = folder / f"{path.name}.paid"
    paid = paid_file.read_text().splitlines() if paid_file.exists() else []
    has_switched = (commit, step) == (COMMITS, "after commit")
    async with SqliteStore(path) as store:
        active = await store.embeddings.active()
        assert active == (Generation(2, "fake-b", 4, "active") if has_switched else Generation(1, "old", 2, "active"))
        # Every answer is whole: each record has a vector of the model that search uses.
        assert look(path, f"select count(*) from vmem_vectors_{active.number}") == [(RECORDS,)]
        assert (await store.embeddings.begin("fake-b", 4)).number == 2
        stored = RECORDS - await store.embeddings.missing(2)
        assert len(paid) - stored in range(BATCH * concurrency + 1)
        new = NewEmbedder()
        memory = open_memory(store)
        result = await memory.reembed(embedder=new, model_id="fake-b", dims=4, batch_size=BATCH)
        assert result == ReembedResult(2, RECORDS - stored, 0, True)
        assert len(paid) + len(new.documents) <= RECORDS + BATCH * concurrency
        hits = await memory.recall("fact", top_k=100)
        assert {hit.match for hit in hits} == {"hybrid"}
        assert len(hits) == RECORDS
    assert look(path, "pragma integrity_check") == [("ok",)]
    assert look(path, "select name from sqlite_schema where name like 'vmem_vectors_%' and type = 'table'") == [
        ("vmem_vectors_2",)
    ]


async def test_after_a_move_the_file_is_written_as_durably_and_deleted_as_thoroughly_as_before(path: Path) -> None:
    settings = ("synchronous", "secure_delete")
    async with SqliteStore(path) as store:
        memory = open_memory(store, embedder=FakeEmbedder())
        await memory.remember("tea", id="a")
        before = [await on_writer(store, f"pragma {name}") for name in settings]
        assert (await memory.reembed(embedder=NewEmbedder(), model_id="fake-b", dims=4)).activated is True
        assert [await on_writer(store, f"pragma {name}") for name in settings] == before == [(2,), (1,)]
        # A put that is refused leaves no setting behind either.
        assert isinstance(await refusal(store.embeddings.put(2, [("a", 1, [1.0])])), EmbeddingMismatchError)
        assert [await on_writer(store, f"pragma {name}") for name in settings] == before


# ------------------------------------------------------------------------------------------------------ other processes

ONLOOKER = """
class Embedder:
    def __init__(self, model, dims):
        self.model, self.dims = model, dims

    def embed(self, texts, *, purpose):
        return Embeddings([[1.0] + [0.0] * (self.dims - 1) for text in texts], self.model)

store = SqliteStore(PATH)
memory = MemorySession(store, SCOPE, embedder=Embedder("old", 2), next_embedder=Embedder("fake-b", 2)).sync
plain = MemorySession(store, SCOPE, embedder=Embedder("old", 2)).sync

def look():
    found = [(hit.record.id, hit.vector_rank) for hit in memory.recall("nothing in common")]
    try:
        plain.recall("nothing in common")
        say([found, None])
    except EmbeddingMismatchError as error:
        say([found, error.active_model])

look()
while sys.stdin.readline():
    look()
"""


async def test_another_process_that_has_its_index_in_memory_sees_the_switch_at_once(path: Path) -> None:
    towards, away = [1.0, 0.0], [0.0, 1.0]
    async with SqliteStore(path) as store:
        old = FakeEmbedder("old", 2, vectors={"tea": towards, "milk": away})
        await open_memory(store, embedder=old).remember_many([Draft("tea", "a"), Draft("milk", "b")])
        with Script(ONLOOKER, path) as onlooker:

            def seen() -> Any:
                onlooker.tell()
                return json.loads(onlooker.hear())

            assert json.loads(onlooker.hear()) == [[["a", 1], ["b", 2]], None]
            number = (await store.embeddings.begin("fake-b", 2)).number
            await store.embeddings.put(number, [("a", 1, away), ("b", 1, towards)])
            assert seen() == [[["a", 1], ["b", 2]], None]
            assert await store.embeddings.activate(number) is True
            assert seen() == [[["b", 1], ["a", 2]], "fake-b"]
            # A gap that is filled in place is seen too.
            await open_memory(store).remember("rum", id="c")
            assert seen() == [[["b", 1], ["a", 2]], "fake-b"]
            await store.embeddings.put(number, [("c", 1, towards)])
            assert seen() == [[["c", 1], ["b", 2], ["a", 3]], "fake-b"]


# ------------------------------------------------------------------------------------- writers and readers in the way

Opener = Callable[[], Any]


@pytest.fixture(params=["sqlite", "postgres"])
def opener(request: pytest.FixtureRequest, path: Path) -> Iterator[Opener]:
    """Opens one more store on the same place, with connections of its own."""
    if request.param == "sqlite":
        yield lambda: SqliteStore(path)
        return
    uri = server_uri()
    with fresh_schema() as schema:
        yield lambda: PostgresStore(uri, schema=schema)


def test_searches_and_writes_never_fail_and_never_come_back_empty_while_the_store_moves(opener: Opener) -> None:
    stores = [opener() for _ in range(4)]
    sessions = [
        open_memory(store, embedder=FakeEmbedder("fake-a", 4), next_embedder=NewEmbedder()).sync for store in stores
    ]
    sessions[0].remember_many([Draft(f"tea {n}", f"id{n}") for n in range(40)])
    faults: list[BaseException] = []
    looked: list[int] = []
    moved = Event()

    def write(who: int) -> None:
        for n in range(40):
            sessions[who].revise(f"id{(n * 7 + who) % 40}", text=f"tea {n} of {who}")

    def read() -> None:
        while not moved.is_set():
            hits = sessions[3].recall("tea", top_k=100)
            assert len(hits) == 40
            assert all(hit.lexical_rank for hit in hits)
            assert sum(hit.vector_rank is not None for hit in hits) == 40
            looked.append(len(hits))

    def guarded(function: Callable[..., None], *arguments: Any) -> None:
        try:
            function(*arguments)
        except BaseException as error:  # noqa: BLE001 - a fault of any kind is what is looked for
            faults.append(error)

    threads = [Thread(target=guarded, args=(write, who)) for who in (1, 2)] + [Thread(target=guarded, args=(read,))]
    for thread in threads:
        thread.start()
    mover = open_memory(stores[0]).sync
    numbers = []
    for model in ("fake-b", "fake-a", "fake-b"):
        while True:
            result = mover.reembed(embedder=FakeEmbedder(model, 4), model_id=model, dims=4, batch_size=8)
            if result.activated:
                numbers.append(result.generation)
                break
    moved.set()
    for thread in threads:
        thread.join()
    assert faults == []
    assert looked
    assert numbers == [2, 3, 4]
    assert stores[0].sync.embeddings.active() == Generation(4, "fake-b", 4, "active")
    assert stores[0].sync.embeddings.missing(4) == 0
    for store in stores:
        store.sync.close()
