"""Forks: what stands still while a process forks, and what its child lets go of.

Owns the hooks, and the one lock under which engines are made. Does not own a connection, or what a store does with
an engine.

SQLite forbids to carry an open file across a fork: the child inherits the note that the file is locked, but not the
lock, so that a parent that closes takes the log away under the child, with all that the child committed. And whatever
another thread was about (a transaction, an import, a lock) is in the child for ever as it was. So no engine is made
while a fork happens, engines close their files before it, and both processes open them again on their next use.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol

MAKING = threading.Lock()
"""Held while an engine is made, its driver's import included, and while the process forks."""


class Engine(Protocol):
    """What has files open."""

    def hold(self, release: threading.Event) -> None:
        """Finish what is queued, close, and do nothing until the event."""
        ...


class Store(Protocol):
    """What has an engine."""

    def leave_parent(self) -> None:
        """In a forked child: let go of the engine, whose threads are not here."""
        ...


_ENGINES: weakref.WeakSet[Engine] = weakref.WeakSet()
_STORES: weakref.WeakSet[Store] = weakref.WeakSet()
_releases: list[threading.Event] = []


def watch_engine(engine: Engine) -> None:
    """Have an engine held while the process forks. Called while ``MAKING`` is held."""
    _ENGINES.add(engine)


def watch_store(store: Store) -> None:
    """Have a store leave its parent's engine in every child."""
    _STORES.add(store)


def _before() -> None:
    MAKING.acquire()
    release = threading.Event()
    _releases.append(release)
    for engine in list(_ENGINES):
        engine.hold(release)


def _in_parent() -> None:
    _releases.pop().set()
    MAKING.release()


def _in_child() -> None:
    _releases.clear()
    _ENGINES.clear()
    for store in list(_STORES):
        store.leave_parent()
    MAKING.release()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
