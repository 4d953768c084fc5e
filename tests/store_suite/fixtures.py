"""The fixtures that the suite's tests ask for, besides ``store``, which is yours to give."""

from __future__ import annotations

import pytest
from fakes import ADA, BOB, Clock, FakeEmbedder, Ids

from vmem_core import MemorySession, Store


@pytest.fixture
def clock() -> Clock:
    """The time, as the store under test must be told it: it moves only when a test moves it."""
    return Clock()


@pytest.fixture
def scrubs_at_once() -> bool:
    """Whether a forget leaves no text in the store's files by itself; False for a store that needs ``scrub()``."""
    return True


@pytest.fixture
def new_id() -> Ids:
    """Ids that count up, one count for all sessions of a test."""
    return Ids()


@pytest.fixture
def embedder() -> FakeEmbedder:
    """An embedder that keeps its calls."""
    return FakeEmbedder()


@pytest.fixture
def ada(store: Store, new_id: Ids) -> MemorySession:
    """A session of Ada, without an embedder."""
    return MemorySession(store, ADA, new_id=new_id)


@pytest.fixture
def bob(store: Store, new_id: Ids) -> MemorySession:
    """A session of Bob in the same store."""
    return MemorySession(store, BOB, new_id=new_id)


@pytest.fixture
def seeing(store: Store, new_id: Ids, embedder: FakeEmbedder) -> MemorySession:
    """A session of Ada that embeds."""
    return MemorySession(store, ADA, new_id=new_id, embedder=embedder)
