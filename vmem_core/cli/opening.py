"""Which store and which scope a command works on, and how a scope is spelt.

Owns the way from ``--store`` and ``--scope`` to an open session, and what is said when there is none. A command that
looks at a file never makes one, and never makes a store of another program's database. Does not own the commands
(``commands.py``).
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib.util
import json
import os
import re
import shlex
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from vmem_core import LocalEmbedder, MemorySession, PostgresStore, Scope, SqliteStore, sync

AnyStore = SqliteStore | PostgresStore
SERVERS: Final = ("postgresql", "postgres")
_KEYWORD: Final = re.compile(r"\s*(host|hostaddr|port|dbname|user|password|service|sslmode)\s*=")
FIELDS: Final = tuple(field.name for field in dataclasses.fields(Scope))
_PART: Final = re.compile(rf"({'|'.join(FIELDS)})=(.*)", re.DOTALL)
_NEXT_PART: Final = re.compile(rf",(?=(?:{'|'.join(FIELDS)})=)")


class Stop(Exception):
    """A command cannot go on: one line for people, and the exit code.

    Args:
        message: What is wrong and what to do, in plain words.
        code: 1, or 2 where the command was called in a wrong way.
    """

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


# --- scopes -----------------------------------------------------------------------------------------------------


def parse_scope(options: Sequence[str]) -> Scope | None:
    """The scope that ``--scope`` options spell; None if there is none.

    Args:
        options: Each ``field=value``, several joined by commas, or the scope as a JSON object.

    Raises:
        Stop: For anything else.
        InvalidRequestError: For a blank value, or a JSON object that is no scope.

    >>> parse_scope(["user_id=ada,chat_id=c1"]) == parse_scope(["user_id=ada", "chat_id=c1"])
    True
    >>> parse_scope(['{"user_id": "ada"}'])
    Scope(user_id='ada', agent_id=None, run_id=None, actor_id=None, chat_id=None)
    """
    if len(options) == 1 and options[0].lstrip().startswith("{"):
        return Scope.from_json(options[0])
    given: dict[str, str] = {}
    for part in (part for option in options for part in _NEXT_PART.split(option)):
        found = _PART.fullmatch(part)
        if found is None:
            raise Stop(f"--scope {part!r} {_how_to_write(part)}; the fields are {', '.join(FIELDS)}", 2)
        if found[1] in given:
            raise Stop(f"--scope names {found[1]} twice", 2)
        given[found[1]] = found[2]
    return Scope(**given) if given else None


def _how_to_write(part: str) -> str:
    """What is wrong with a part of ``--scope``, and how it was probably meant."""
    name, equals, value = (one.strip() for one in part.partition("="))
    wrong = "is of no field that there is" if equals else "is not field=value"
    meant = difflib.get_close_matches(name.lower().replace("-", "_"), FIELDS, 1, cutoff=0.5)
    example = f"{meant[0] if meant else FIELDS[0]}={(value if equals else name) or 'ada'}"
    return f"{wrong}; write it as --scope {shlex.quote(example)}"


def spell_scope(scope: Scope) -> str:
    """A scope as ``--scope`` takes it: ``field=value`` joined by commas, or JSON where that would be read wrongly.

    >>> spell_scope(Scope(user_id="ada", chat_id="c1"))
    'user_id=ada,chat_id=c1'
    >>> spell_scope(Scope(user_id="a,run_id=b"))
    '{"user_id": "a,run_id=b"}'
    """
    plain = ",".join(f"{name}={value}" for name in FIELDS if (value := getattr(scope, name)) is not None)
    ambiguous = len(_NEXT_PART.split(plain)) != sum(getattr(scope, name) is not None for name in FIELDS)
    # JSON in ASCII: a value may hold what a terminal would obey.
    return json.dumps(json.loads(scope.key)) if ambiguous or not plain.isprintable() else plain


# --- stores -----------------------------------------------------------------------------------------------------


def is_server(target: str) -> bool:
    """Whether ``--store`` names a server, not a file."""
    return "://" in target


@contextmanager
def opened(target: str) -> Iterator[AnyStore]:
    """The store in an existing file or on a server, closed at the end.

    Args:
        target: The path of a file; or a connection string with ``://``, with ``#schema`` behind it if need be.

    Raises:
        Stop: If there is no such store: none is made.
    """
    _check_target(target)
    if not is_server(target):
        if not os.path.exists(target):
            raise Stop(f"there is no file {target}; name one with --store or VMEM_STORE, or make one with `vmem demo`")
        refuse_other_files(target)
    with closing_store(target) as store:
        if isinstance(store, PostgresStore) and not store.sync.exists():
            raise Stop(
                "the database holds no memories there; if they are in another schema, add #SCHEMA to the address"
            )
        yield store


def shown(target: str) -> str:
    """A store's path; of a connection string, which may hold a password, only that it is one."""
    return "the database" if is_server(target) else target


@contextmanager
def closing_store(target: str) -> Iterator[AnyStore]:
    """The store in a file or on a server, made if need be, closed at the end."""
    _check_target(target)
    store = _server(target) if is_server(target) else SqliteStore(target)
    try:
        yield store
    finally:
        store.sync.close()


def _check_target(target: str) -> None:
    """Refuse what is neither a path nor an address, without a word of what it says: it may hold a password."""
    scheme, separator, _ = target.partition("://")
    if separator and scheme not in SERVERS:
        wrong = f"{scheme}://"
    elif not separator and _KEYWORD.match(target) and not os.path.exists(target):
        wrong = "KEYWORD=VALUE"
    else:
        return
    raise Stop(f"--store takes the path of a file, or postgresql://USER@HOST/DATABASE; {wrong} is neither", 2)


def _server(target: str) -> PostgresStore:
    dsn, _, schema = target.partition("#")
    return PostgresStore(dsn, schema=unquote(schema) or "public")


def refuse_other_files(path: str) -> None:
    """Let nobody make a memory store of another program's database.

    Raises:
        Stop: If the file is a database without our tables: to open it as a store would add them.
    """
    if not is_server(path) and os.path.exists(path) and _is_of_another_program(path):
        raise Stop(f"{path} is the database of another program and holds no memories; nothing was changed")


def _is_of_another_program(path: str) -> bool:
    try:
        with closing(sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True)) as connection:
            found = connection.execute("select count(*) from sqlite_schema where name = 'vmem_schema'").fetchone()
    except sqlite3.Error:
        return False  # not a database, locked, no access: the store itself says so, in better words
    return not found[0]


def choose_scope(store: AnyStore, options: Sequence[str]) -> Scope:
    """The scope that was asked for, or else the only one there is.

    Raises:
        Stop: If none was asked for and the store holds none, or several, which are listed.
    """
    if (asked := parse_scope(options)) is not None:
        return asked
    scopes: list[Scope] = list(store.sync.scopes())
    if len(scopes) == 1:
        return scopes[0]
    if not scopes:
        raise Stop("the store holds no memories yet; `vmem demo` writes some", 2)
    raise Stop(f"the store holds {len(scopes)} scopes; choose one:\n{_list_scopes(store, scopes)}", 2)


def _list_scopes(store: AnyStore, scopes: Sequence[Scope], most: int = 20) -> str:
    lines = []
    for scope in scopes[:most]:
        count = MemorySession(store, scope).sync.count()
        lines.append(f"  --scope {shlex.quote(spell_scope(scope))}   ({count} {'record' if count == 1 else 'records'})")
    if len(scopes) > most:
        lines.append(f"  and {len(scopes) - most} more")
    return "\n".join(lines)


@contextmanager
def session_of(target: str, options: Sequence[str]) -> Iterator[MemorySession]:
    """A session on an existing store, without an embedder.

    Raises:
        Stop: As :func:`opened` and :func:`choose_scope`.
    """
    with opened(target) as store:
        yield MemorySession(store, choose_scope(store, options))


def searching(session: MemorySession) -> tuple[MemorySession, str]:
    """The session to search with, and one line that says by what it finds."""
    generation = sync.facade(session.store.embeddings).active()
    if generation is None:
        return session, "by words only: the store holds no vectors"
    if generation.model_id != LocalEmbedder.model:
        return session, f"by words only: the vectors are of {generation.model_id}, which vmem does not run"
    if importlib.util.find_spec("wordllama") is None:
        return session, 'by words only: to search by meaning too, pip install "versioned-memory[local]"'
    return (
        MemorySession(session.store, session.scope, embedder=LocalEmbedder()),
        f"by meaning and words ({generation.model_id})",
    )
