"""The contract of a store, on the in-memory store."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from fakes import Clock
from store_suite import *  # noqa: F403 - its tests run here

from vmem_core import InMemoryStore


@pytest.fixture
async def store(clock: Clock) -> AsyncIterator[InMemoryStore]:
    made = InMemoryStore(clock=clock)
    yield made
    await made.close()
