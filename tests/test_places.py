"""What tells two stores apart, whichever objects stand for them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from vmem_core import InMemoryStore, PostgresStore, SqliteStore, store_digest

DSN = "postgresql://app:secret@db.example:5432/memory"


class Pool:
    """As much of a connection pool as a store asks for before it is used."""

    def __init__(self, conninfo: Any, kwargs: dict[str, Any] | None = None) -> None:
        self.conninfo, self.kwargs = conninfo, kwargs

    def connection(self) -> None:
        raise AssertionError("nothing is connected to")


class OwnStore:
    """A store of a host's own."""

    def __init__(self, place: Any = None) -> None:
        self.place = place


def same(one: Any, other: Any) -> bool:
    return store_digest(one) == store_digest(other)


def test_stores_of_one_file_are_one_place_however_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.symlink(tmp_path, tmp_path / "link")
    stores = [SqliteStore(name) for name in ("m.db", "./m.db", tmp_path / "m.db", "link/m.db")]
    assert len({store_digest(store) for store in stores}) == 1
    assert not same(stores[0], SqliteStore("other.db"))


def test_each_store_in_memory_is_a_place_of_its_own() -> None:
    store = InMemoryStore()
    assert same(store, store)
    assert not same(store, InMemoryStore())


@pytest.mark.parametrize(
    ("other", "schema", "is_same"),
    [
        (DSN, "public", True),
        ("host=db.example port=5432 dbname=memory user=app password=changed", "public", True),
        (Pool(DSN), "public", True),
        (Pool("", {"host": "db.example", "port": 5432, "dbname": "memory", "user": "app"}), "public", True),
        (DSN, "tenant_two", False),
        (DSN.replace("/memory", "/other"), "public", False),
        (DSN.replace("db.example", "db2.example"), "public", False),
        (Pool(lambda: DSN), "public", False),
        ("no connection string", "public", False),
    ],
)
def test_stores_of_one_schema_of_a_database_are_one_place(other: Any, schema: str, is_same: bool) -> None:
    pytest.importorskip("psycopg")
    assert same(PostgresStore(DSN), PostgresStore(other, schema=schema)) is is_same


def test_a_pool_that_does_not_tell_where_it_leads_is_known_by_itself() -> None:
    pytest.importorskip("psycopg")
    pool = Pool(lambda: DSN)
    assert same(PostgresStore(pool), PostgresStore(pool))
    assert not same(PostgresStore(pool), PostgresStore(pool, schema="tenant_two"))


def test_no_password_is_in_the_name_of_a_place() -> None:
    pytest.importorskip("psycopg")
    assert "secret" not in PostgresStore(DSN).place
    assert "example" not in store_digest(PostgresStore(DSN))


def test_a_store_of_a_hosts_own_says_its_place_or_is_known_by_itself() -> None:
    assert same(OwnStore("shop"), OwnStore("shop"))
    assert not same(OwnStore("shop"), OwnStore("bank"))
    assert not same(OwnStore(), OwnStore())
