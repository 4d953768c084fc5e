"""The contract of a store, on the in-memory store; and the suite itself."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import store_suite
from conftest import BACKENDS, BackendMissing, make_store
from fakes import Clock
from store_suite import *  # noqa: F403 - its tests run here

from vmem_core import InMemoryStore, SqliteStore


@pytest.fixture
async def store(clock: Clock) -> AsyncIterator[InMemoryStore]:
    made = InMemoryStore(clock=clock)
    yield made
    await made.close()


def test_the_suite_hands_out_every_test_of_its_parts() -> None:
    written = sum(inspect.getsource(part).count("\nasync def test_") for part in store_suite.PARTS)
    assert len(store_suite.__all__) == written > 150
    assert all(name in globals() for name in store_suite.__all__)


def test_every_backend_is_made_without_opening_it(clock: Clock, tmp_path: Path) -> None:
    made = {name: type(make_store(maker, clock, tmp_path)) for name, maker in BACKENDS.items()}
    assert made == {"memory": InMemoryStore, "sqlite": SqliteStore}
    assert list(tmp_path.iterdir()) == []


def test_a_missing_backend_skips_on_a_laptop_and_fails_where_ci_is_set(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(clock: Clock, folder: Path) -> None:
        raise BackendMissing("no server answers at the address given")

    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no server answers"):
        make_store(missing, clock, tmp_path)
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="CI is set"):
        make_store(missing, clock, tmp_path)
