"""Every kind of write against a disk that is full, and a file that may not be written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fakes import Clock, refusal
from power_cord import WRITES, Story, story_of, write
from processes import run_script
from sqlite_fakes import look, on_writer

from vmem_core import SqliteStore, StoreUnavailableError


@pytest.fixture(params=WRITES)
async def story(request: pytest.FixtureRequest) -> Story:
    return await story_of(request.param)


# The kernel refuses to let files grow: the log can take no more, as on a full disk.
FULL_DISK = """
import resource
sys.path.insert(0, "tests")
from fakes import Clock
from power_cord import WRITES, story_of, visible, write

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

async def fail_and_succeed(name):
    story, path = await story_of(name), os.path.join(PATH, f"{name}.db")
    store = SqliteStore(path, clock=Clock())
    await story.begin(store)
    refused, size = 0, os.path.getsize(path + "-wal")
    for room in range(0, 200_000, 9000):
        limit(size + room)
        try:
            answer = await write(store, name)
        except StoreUnavailableError as error:
            refused += 1
            assert error.retryable, error
            assert await visible(store) == story.before
            continue
        finally:
            limit(resource.RLIM_INFINITY)
        assert (answer.receipt, answer.replayed) == (story.receipt, False)
        break
    await story.check(store, after=True)
    await store.close()
    say([name, refused])

for name in WRITES:
    asyncio.run(fail_and_succeed(name))
"""


def test_a_full_disk_refuses_every_kind_of_write_whole_until_there_is_room(tmp_path: Path) -> None:
    refused = dict(json.loads(line) for line in run_script(FULL_DISK, tmp_path))
    assert list(refused) == list(WRITES)
    assert all(count >= 1 for count in refused.values()), refused
    for name in WRITES:
        assert look(tmp_path / f"{name}.db", "pragma integrity_check") == [("ok",)]


async def test_a_file_that_may_only_be_read_refuses_every_kind_of_write_and_stays_as_it_is(
    tmp_path: Path, story: Story
) -> None:
    path = tmp_path / "memory.db"
    async with SqliteStore(path, clock=Clock()) as store:
        await story.begin(store)
        await on_writer(store, "pragma query_only = on")  # what the system does to a file binds nobody who is root
        error = await refusal(write(store, story.name))
        assert isinstance(error, StoreUnavailableError)
        assert not error.retryable
        assert "cannot be written" in str(error)
        await on_writer(store, "pragma query_only = off")
        await story.check(store, after=False)
