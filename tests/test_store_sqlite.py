"""The contract of a store, on the SQLite store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fakes import Clock
from store_suite import *  # noqa: F403 - its tests run here

from vmem_core import SqliteStore


@pytest.fixture
async def store(clock: Clock, tmp_path: Path) -> AsyncIterator[SqliteStore]:
    made = SqliteStore(tmp_path / "memory.db", clock=clock)
    yield made
    await made.close()
