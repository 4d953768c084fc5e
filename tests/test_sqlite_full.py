"""A SQLite file that cannot grow, or cannot be written at all."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes import open_memory, refusal, texts
from processes import run_script
from sqlite_fakes import contents, look, on_writer, with_one_record

from vmem_core import SqliteStore, StoreUnavailableError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory.db"


# --- full -----------------------------------------------------------------------------------------------------------


async def test_a_full_file_refuses_writes_whole_and_works_again_when_there_is_room(path: Path) -> None:
    async with SqliteStore(path) as store:
        memory = open_memory(store)
        kept = (await memory.remember("Ada likes tea.")).records[0]
        (pages,) = await on_writer(store, "pragma page_count")
        await on_writer(store, f"pragma max_page_count = {pages}")
        for long in ("x" * 50_000, "y" * 90_000):
            for write in (memory.remember(long, operation_id="big"), memory.revise(kept.id, text=long)):
                error = await refusal(write)
                assert isinstance(error, StoreUnavailableError)
                assert error.retryable
                assert "full" in str(error)
        assert await memory.receipt("big") is None
        assert (await memory.scope_revision(), await memory.count()) == (1, 1)
        assert texts(await memory.recall("tea")) == ["Ada likes tea."]
        await on_writer(store, "pragma max_page_count = 1073741823")
        assert not (await memory.remember("x" * 50_000, operation_id="big")).replayed
        assert await memory.scope_revision() == 2
    assert look(path, "pragma integrity_check") == [("ok",)]


async def test_a_write_too_big_for_a_full_file_takes_no_other_with_it_silently(path: Path) -> None:
    async with SqliteStore(path) as store:
        memory = open_memory(store)
        await memory.remember("Ada likes tea.")
        (pages,) = await on_writer(store, "pragma page_count")
        await on_writer(store, f"pragma max_page_count = {pages}")
        writes = [memory.remember("z" * 90_000 if n == 3 else f"fact {n}", operation_id=f"o{n}") for n in range(8)]
        answers = await asyncio.gather(*writes, return_exceptions=True)
        stand = [answer.receipt for answer in answers if not isinstance(answer, BaseException)]
        refused = [answer for answer in answers if isinstance(answer, BaseException)]
        assert isinstance(answers[3], StoreUnavailableError)
        assert all(isinstance(error, StoreUnavailableError) and error.retryable for error in refused)
        # Whoever got a receipt has its record, whoever got an error has none.
        assert [await memory.receipt(receipt.operation_id) for receipt in stand] == stand
        assert await memory.count() == 1 + len(stand) == await memory.scope_revision()


# A file that may not grow beyond a size: the kernel refuses the write, as on a full disk.
FULL_DISK = """
import resource

async def main():
    store = SqliteStore(PATH)
    memory = MemorySession(store, SCOPE)
    kept = (await memory.remember("kept", id="r1")).records[0]
    await memory.remember_many([Draft("x" * 20_000) for _ in range(40)])
    await store.scrub()
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
    refused = 0
    for n in range(8):
        try:
            await memory.remember("y" * 60_000, operation_id=f"o{n}")
        except StoreUnavailableError as error:
            assert error.retryable, error
            refused += 1
            assert await memory.receipt(f"o{n}") is None
    say(refused)
    say(await memory.count())
    gone = await memory.forget("r1")
    say([gone.revisions, gone.scrubbed])
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    say((await memory.remember("after")).receipt.scope_revision)
    await store.close()

asyncio.run(main())
"""


def test_a_full_disk_is_a_typed_error_and_what_was_acknowledged_stands(path: Path) -> None:
    refused, count, forgotten, revision = map(json.loads, run_script(FULL_DISK, path))
    assert 3 <= refused < 8
    assert count == 41 + 8 - refused
    assert forgotten == [[1], False]  # it stands; the log cannot be cut yet
    assert revision == 2 + 8 - refused + 2
    assert look(path, "pragma integrity_check") == [("ok",)]
    assert look(path, "select count(*) from vmem_receipts") == [(revision,)]
    assert b"kept" not in path.read_bytes()


# --- read-only ------------------------------------------------------------------------------------------------------

# The right to write binds nobody who is root, so a root gives it up; what is imported later it could not read perhaps.
UNPRIVILEGED = """
import concurrent.futures.thread, vmem_core.stores._sqlite, vmem_core.stores._transaction
from vmem_core import tokens
tokens.query_tokens("warm", "english")
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)

async def main():
    store = SqliteStore(PATH)
    memory = MemorySession(store, SCOPE)
    for name, verb in (("write", lambda: memory.remember("Ada likes coffee.")), ("read", lambda: memory.recall("tea"))):
        try:
            found = await verb()
            say([name, [hit.record.text for hit in found]])
        except StoreUnavailableError as error:
            say([name, error.retryable, str(error)])
    await store.close()

asyncio.run(main())
"""


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A file that does not exist yet, in a folder that other users can reach: pytest's own are closed to them."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder) / "memory.db"
        os.chmod(folder, 0o755)


def test_a_new_file_in_a_folder_that_cannot_be_written_is_told(open_path: Path) -> None:
    open_path.parent.chmod(0o555)
    for line in run_script(UNPRIVILEGED, open_path):
        _, retryable, message = json.loads(line)
        assert not retryable
        assert "cannot be opened; check that its folder exists and can be written" in message
    assert not contents(open_path.parent)


@pytest.mark.parametrize("folder", [0o555, 0o777])
async def test_a_file_that_cannot_be_written_refuses_writes_and_says_why(open_path: Path, folder: int) -> None:
    await with_one_record(open_path)
    before = contents(open_path.parent)["memory.db"]
    os.chmod(open_path, 0o444)
    os.chmod(open_path.parent, folder)
    answers = [json.loads(line) for line in run_script(UNPRIVILEGED, open_path)]
    write, read = (answer[1:] for answer in answers)
    assert write[0] is False
    assert "give this process write access to it and its folder" in write[1]
    # Another process may write at any time, so that even a reader needs the two files beside this one.
    assert read == ([["Ada likes tea."]] if folder == 0o777 else write)
    assert contents(open_path.parent)["memory.db"] == before
