"""A process killed at every step of every kind of write: what is left is the state before it or after it, whole."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from fakes import Clock
from postgres_server import fresh_schema, server_uri
from power_cord import EVERY, WRITES, Story, story_of, visible
from processes import Script
from psycopg.conninfo import make_conninfo
from sqlite_fakes import look

from vmem_core import PostgresStore, SqliteStore

# It forks a child for each line that it hears, before it has any thread or connection.
DYING = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # later Pythons warn of a fork beside threads
sys.path.insert(0, "tests")
import psycopg_pool
import power_cord
import vmem_core.planning, vmem_core.stores._sqlite, vmem_core.stores._postgres
from vmem_core import tokens

tokens.query_tokens("warm", "english")
say("ready")
for line in sys.stdin:
    kind, *arguments = json.loads(line)
    say(power_cord.in_a_child(getattr(power_cord, kind), *arguments))
"""
KILLED = -9


@pytest.fixture(scope="module")
def dying() -> Iterator[Script]:
    with Script(DYING, Path()) as script:
        script.hear()
        yield script


class Child:
    """Children that die at points of one write, one after the other.

    Args:
        script: What forks them.
        kind: The function of ``power_cord`` that they run.
        arguments: Its arguments after the point.
    """

    def __init__(self, script: Script, kind: str, *arguments: str) -> None:
        self._script, self._kind, self._arguments = script, kind, arguments

    def dies_at(self, point: int | str) -> int | None:
        """How many steps it had passed; None if it came to the end of the write without meeting the point."""
        self._script.tell(json.dumps([self._kind, point, *self._arguments]))
        code, passed = json.loads(self._script.hear())
        assert code in (0, KILLED)
        return passed if code == KILLED else None


@pytest.fixture(params=WRITES)
async def story(request: pytest.FixtureRequest) -> Story:
    """A write, as it goes where nobody is killed."""
    return await story_of(request.param)


async def test_a_process_killed_at_any_statement_leaves_a_file_before_or_after_the_write(
    tmp_path: Path, dying: Script, story: Story
) -> None:
    base, path = tmp_path / "base.db", tmp_path / "memory.db"
    async with SqliteStore(base, clock=Clock()) as store:
        await story.begin(store)
    child = Child(dying, "kill_in_sqlite", str(path), story.name)

    async def killed(point: int | str, after: bool) -> int | None:
        restore(base, path)
        passed = child.dies_at(point)
        async with SqliteStore(path, clock=Clock()) as store:
            await story.check(store, after=after)
        return passed

    steps = await killed("before commit", after=False)
    assert steps is not None
    assert steps >= 8
    for step in (*range(steps % EVERY, steps, EVERY), "loaded", "applied"):
        assert await killed(step, after=False) is not None
    later = await killed("after commit", after=True)
    assert later is not None
    while later is not None:  # what follows a commit: the log of a forget is cut
        later = await killed(later + 1, after=True)
    assert look(path, "pragma integrity_check") == [("ok",)]


async def test_a_process_killed_at_any_message_to_the_server_leaves_a_schema_before_or_after_the_write(
    dying: Script, story: Story
) -> None:
    with fresh_schema() as schema, closing(psycopg.connect(server_uri(), autocommit=True)) as watcher:
        application = f"dying {schema}"
        dsn = make_conninfo(server_uri(), application_name=application)
        child = Child(dying, "kill_in_postgres", dsn, schema, story.name)
        async with PostgresStore(server_uri(), schema=schema, clock=Clock()) as store:
            await story.begin(store)

            async def killed(point: int | str, after: bool) -> int | None:
                passed = child.dies_at(point)
                until_gone(watcher, application)
                assert await visible(store) == (story.after if after else story.before)
                return passed

            steps = await killed("before commit", after=False)
            assert steps is not None
            assert steps >= 8
            for step in (*range(steps % EVERY, steps, EVERY), "loaded", "applied"):
                assert await killed(step, after=False) is not None
            assert await killed("after commit", after=True) is not None
            await story.check(store, after=True)


def restore(base: Path, path: Path) -> None:
    """The file as it was before the write, without the log that a killed process left beside it."""
    for left in path.parent.glob(f"{path.name}*"):
        left.unlink()
    shutil.copy(base, path)


def until_gone(watcher: psycopg.Connection[Any], application: str) -> None:
    """Until the server has seen that its client is dead: what it had been sent by then, it may still do."""
    for _ in range(100_000):
        statement = "select count(*) from pg_stat_activity where application_name = %s"
        if watcher.execute(statement, (application,)).fetchone() == (0,):
            return
    pytest.fail("the server keeps the connection of a dead client")
