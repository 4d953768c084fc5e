"""The contract of a store, on the PostgreSQL store with a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from fakes import Clock
from postgres_server import fresh_schema, server_uri
from store_suite import *  # noqa: F403 - its tests run here

from vmem_core import PostgresStore


@pytest.fixture
async def store(clock: Clock) -> AsyncIterator[PostgresStore]:
    uri = server_uri()
    with fresh_schema() as schema:
        made = PostgresStore(uri, schema=schema, clock=clock)
        yield made
        await made.close()


@pytest.fixture
def scrubs_at_once() -> bool:
    """The old row waits for VACUUM, which ``scrub()`` runs."""
    return False
