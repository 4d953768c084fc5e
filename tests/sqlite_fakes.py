"""What tests of the SQLite file share: a gate for its writing thread, a look at its tables, a search of its bytes.

Owns nothing of the library's: it reads files the way another program would.
"""

from __future__ import annotations

import asyncio
import functools
import json
import sqlite3
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from fakes import ADA, open_memory
from processes import Script

from vmem_core import SqliteStore

# The first call to a store meets its file.
FIRST_CALLS: dict[str, Callable[[SqliteStore], Awaitable[Any]]] = {
    "scope_revision": lambda store: store.scope_revision(ADA),
    "remember": lambda store: open_memory(store).remember("Ada likes tea."),
    "recall": lambda store: open_memory(store).recall("tea"),
    "forget": lambda store: open_memory(store).forget("r1"),
    "active": lambda store: store.embeddings.active(),
    "scrub": lambda store: store.scrub(),
    "enter": lambda store: store.__aenter__(),
}


class Gate:
    """The probe of a store: does what was planned for the coming steps of its writing thread, in that order."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self._plan: deque[tuple[str, Callable[[], None]]] = deque()
        self._reached, self._opened = threading.Event(), threading.Event()

    def __call__(self, step: str) -> None:
        self.seen.append(step)
        if self._plan and self._plan[0][0] == step:
            self._plan.popleft()[1]()

    def hold(self, step: str) -> None:
        """Stop there until ``open``."""
        self._reached.clear()
        self._opened.clear()
        self._plan.append((step, self._stop))

    def _stop(self) -> None:
        self._reached.set()
        self._opened.wait()

    def let_pass(self, step: str) -> None:
        self._plan.append((step, lambda: None))

    def fail(self, step: str, error: BaseException) -> None:
        """Raise there."""
        self._plan.append((step, functools.partial(_raise, error)))

    async def reached(self) -> None:
        """Until the thread stands at the step."""
        await asyncio.to_thread(self._reached.wait)

    def open(self) -> None:
        self._opened.set()


def _raise(error: BaseException) -> None:
    raise error


def gated(path: Path) -> tuple[SqliteStore, Gate]:
    """A store with a gate in its writing thread."""
    store, gate = SqliteStore(path), Gate()
    store._probe = gate
    return store, gate


async def queued(store: SqliteStore, *writes: Awaitable[Any]) -> list[asyncio.Future[Any]]:
    """Writes that all wait in the queue of a store whose writing thread is held."""
    tasks = [asyncio.ensure_future(write) for write in writes]
    while len(store._opened()._pending) < len(tasks):  # noqa: ASYNC110 - a queue that nobody takes from tells nobody
        await asyncio.sleep(0)
    return tasks


async def on_writer(store: SqliteStore, statement: str) -> Any:
    """The first row of a statement on the very connection that writes: some limits hold for one connection only."""
    future = store._opened().write(lambda connection: connection.execute(statement).fetchone())
    return await asyncio.wrap_future(future)


def look(path: Path, statement: str) -> list[tuple[Any, ...]]:
    """What another program reads in the file."""
    connection = sqlite3.connect(path)
    try:
        return connection.execute(statement).fetchall()
    finally:
        connection.close()


def sqlite_file(path: Path, *statements: str) -> None:
    """A file made without the library."""
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


async def with_one_record(path: Path) -> None:
    """A store that holds one record."""
    async with SqliteStore(path) as store:
        await open_memory(store).remember("Ada likes tea.")


def names(folder: Path) -> list[str]:
    """Of the files in a folder, sorted."""
    return sorted(one.name for one in folder.iterdir())


def contents(folder: Path) -> dict[str, bytes]:
    """Every file in and below a folder. Not while a store has one of them open here: see ``SEARCHER``."""
    return {str(one.relative_to(folder)): one.read_bytes() for one in folder.rglob("*") if one.is_file()}


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


def needle(number: int) -> str:
    """A word that nothing else holds."""
    return f"zq{number:06d}x"


class Disk:
    """The bytes of whatever lies in the store's folder: the database, its log, its shared memory, its journal.

    Args:
        searcher: Runs ``SEARCHER``.
    """

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
        forms: dict[str, str | bytes] = {}
        for one in searched:
            for form in {one.encode(), one.lower().encode()} if isinstance(one, str) else {one}:
                forms[form.hex()] = one
        found: dict[str | bytes, set[str]] = {}
        for file, form in self._ask(list(forms)):
            found.setdefault(forms[form], set()).add(file)
        return found


def kept_texts(path: Path) -> list[str]:
    """The texts of all revisions in the file, oldest first; the file must be sound."""
    assert look(path, "pragma integrity_check") == [("ok",)]
    return [json.loads(body)["text"] for (body,) in look(path, "select body from vmem_revisions order by entry")]
