"""An import that ends before its time: killed at any step, cancelled, or waiting for nobody's source."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fakes import ADA, open_memory
from processes import run_script
from sqlite_fakes import gated

from vmem_core import ImportResult, InMemoryStore, LegacyRecord, SqliteStore, VmemError, import_legacy

RECORDS = 10

KILLED = """
def die(path, last, batch):
    seen = 0

    def probe(step):
        nonlocal seen
        seen += step == last
        if seen == batch:
            os.kill(os.getpid(), signal.SIGKILL)

    store = SqliteStore(path)
    store.sync.scopes()
    store._probe = probe
    store._engine._probe = probe
    source = [LegacyRecord(f"m-{n}", f"fact {n}", SCOPE) for n in range(int(ARGS[0]))]
    run_sync(import_legacy(source, store, batch_size=3))

for last in ("before commit", "after commit"):
    for batch in (1, 2, 4):
        if (pid := os.fork()) == 0:
            try:
                die(os.path.join(PATH, f"{last} {batch}.db"), last, batch)
            finally:
                os._exit(1)
        say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def source() -> list[LegacyRecord]:
    return [LegacyRecord(f"m-{n}", f"fact {n}", ADA) for n in range(RECORDS)]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of files, each left by an import that was killed in one of its batches."""
    folder = tmp_path_factory.mktemp("killed")
    assert run_script(KILLED, folder, RECORDS) == ["-9"] * 6
    return folder


@pytest.mark.parametrize("step", ["before commit", "after commit"])
@pytest.mark.parametrize("batch", [1, 2, 4])
async def test_an_import_that_was_killed_goes_on_where_it_stood_when_it_is_run_again(
    killed: Path, step: str, batch: int
) -> None:
    there = min(RECORDS, 3 * (batch if step == "after commit" else batch - 1))
    async with SqliteStore(killed / f"{step} {batch}.db") as store:
        assert await open_memory(store).count() == await store.scope_revision(ADA) == there
        result = await import_legacy(source(), store)
        assert result == ImportResult(10, 10 - there, there, {"already_imported": there} if there else {})
        assert await store.scope_revision(ADA) == RECORDS
        assert (await import_legacy(source(), store)).imported == 0


async def test_a_cancelled_import_keeps_whole_batches_and_goes_on_later(tmp_path: Path) -> None:
    reached = asyncio.Event()

    async def slow() -> AsyncIterator[LegacyRecord]:
        for record in source()[:7]:
            yield record
        reached.set()
        await asyncio.Event().wait()

    async with SqliteStore(tmp_path / "memory.db") as store:
        task = asyncio.ensure_future(import_legacy(slow(), store, batch_size=3))
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await store.scope_revision(ADA) == 6
        assert (await import_legacy(source(), store)).imported == RECORDS - 6


async def test_a_cancelled_import_has_ended_its_commit_when_its_caller_is_told(tmp_path: Path) -> None:
    store, gate = gated(tmp_path / "memory.db")
    async with store:
        assert list(await store.scopes()) == []
        store._engine._probe = gate  # type: ignore[union-attr]
        gate.hold("before commit")
        task = asyncio.ensure_future(import_legacy(source(), store, batch_size=3))
        await gate.reached()
        for _ in range(3):
            task.cancel()
            for _ in range(3):
                await asyncio.sleep(0)
        was_told = task.done()
        gate.open()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not was_told
        assert gate.seen == ["before commit", "after commit"]
        assert await store.scope_revision(ADA) == 3
        assert gate.seen == ["before commit", "after commit"]


class RefusingStore(InMemoryStore):
    """A store that fails at its second batch."""

    batches = 0

    async def run_imports(self, operations: Any, *, dry_run: bool = False) -> list[str | None]:
        self.batches += 1
        if self.batches == 2:
            raise VmemError("the server is gone")
        return await super().run_imports(operations, dry_run=dry_run)


async def test_a_store_that_fails_half_way_ends_the_import_and_keeps_what_it_took() -> None:
    store = RefusingStore()
    with pytest.raises(VmemError, match="the server is gone"):
        await import_legacy(source(), store, batch_size=3)
    assert await store.scope_revision(ADA) == 3
    assert await import_legacy(source(), store) == ImportResult(10, 7, 3, {"already_imported": 3})
