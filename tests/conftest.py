"""Fixtures of all tests: the stores, and what the suite needs around them.

A test that asks for ``store`` runs on every backend. A backend that is not there skips its tests on a laptop and
fails them where ``CI`` is set. Sockets are disabled in ``pyproject.toml``.
"""

# ruff: noqa: F811 - a fixture is asked for by its name
from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# A slow machine is no fault. Where CI is set, Hypothesis brings a profile of its own, which repeats itself exactly.
settings.register_profile("patient", deadline=None)
if "CI" not in os.environ:
    settings.load_profile("patient")

pytest.register_assert_rewrite("store_suite", "tool_suite", "fakes")

from fakes import Clock  # noqa: E402 - after the line above, so that its asserts explain themselves
from store_suite.fixtures import ada, bob, clock, embedder, new_id, scrubs_at_once, seeing  # noqa: E402, F401

from vmem_core import InMemoryStore, SqliteStore, text_digest  # noqa: E402


class BackendMissing(Exception):
    """A backend cannot be reached here; the message says what it lacks."""


# A maker opens nothing: it returns a store, or raises BackendMissing.
Maker = Callable[[Clock, Path], Any]
BACKENDS: dict[str, Maker] = {
    "memory": lambda clock, folder: InMemoryStore(clock=clock),
    "sqlite": lambda clock, folder: SqliteStore(folder / "memory.db", clock=clock),
}


def make_store(maker: Maker, clock: Clock, folder: Path) -> Any:
    """A store of one backend; without the backend the test ends here, skipped or, in CI, failed."""
    try:
        return maker(clock, folder)
    except BackendMissing as reason:
        if os.environ.get("CI"):
            pytest.fail(f"{reason} (CI is set, so every backend must be there)")
        pytest.skip(str(reason))


@pytest.fixture(params=sorted(BACKENDS))
async def store(request: pytest.FixtureRequest, clock: Clock, tmp_path: Path) -> AsyncIterator[Any]:
    """An empty store of each backend, closed at the end."""
    made = make_store(BACKENDS[request.param], clock, tmp_path)
    yield made
    await made.close()


@pytest.fixture
def named(request: pytest.FixtureRequest) -> str:
    """A binding of the test's own: bindings are the process's. It holds no text that a test may look for."""
    return text_digest(request.node.nodeid)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a SQLite file may be made, in a folder that holds nothing else."""
    folder = tmp_path / "store"
    folder.mkdir()
    return folder / "memory.db"
