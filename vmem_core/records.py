"""What is remembered: scopes, sources, links, drafts and records.

Owns the values of a record and their checks: a wrong one cannot be built. Does not own what operations answer
(``results.py``), limits of size (``limits.py``) or how values look (``display.py``).
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any, ClassVar, Literal

from vmem_core import display
from vmem_core.errors import InvalidRequestError
from vmem_core.text import check_string, check_text
from vmem_core.values import (
    Value,
    check_choice,
    check_importance,
    check_instant,
    check_integer,
    check_optional_text,
    check_values,
    copy_json,
    decode_instant,
    decode_span,
    many,
    single,
)

Kind = Literal["semantic", "episodic", "working", "procedural"]
Origin = Literal["asserted", "inferred"]
Status = Literal["active", "retracted"]
SourceKind = Literal["user", "assistant", "tool", "external", "host"]
KINDS: tuple[Kind, ...] = ("semantic", "episodic", "working", "procedural")
ORIGINS: tuple[Origin, ...] = ("asserted", "inferred")
STATUSES: tuple[Status, ...] = ("active", "retracted")
SOURCE_KINDS: tuple[SourceKind, ...] = ("user", "assistant", "tool", "external", "host")
_DIGEST = re.compile("sha256:[0-9a-f]{64}")


def _set(value: object, name: str, checked: object) -> None:
    object.__setattr__(value, name, checked)


def _make_plain(value: Value, *names: str) -> None:
    """Strings of a subclass, such as an enum's members, become plain ones: their own methods are not to be met."""
    for name in names:
        given = getattr(value, name)
        if type(given) is not str and isinstance(given, str):
            _set(value, name, str.__str__(given))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope(Value):
    """Whose memory it is: the same only if the same fields hold the same code points.

    Args:
        user_id: A user.
        agent_id: An agent.
        run_id: One run of an agent.
        actor_id: Whoever acts, where that is not the user.
        chat_id: A conversation.

    Raises:
        InvalidRequestError: If no field is given, or one is blank or not a string.

    >>> Scope(user_id="ada") == Scope(user_id="ada", chat_id="c1")
    False
    """

    user_id: str | None = None
    agent_id: str | None = None
    run_id: str | None = None
    actor_id: str | None = None
    chat_id: str | None = None

    def __post_init__(self) -> None:
        given = [check_optional_text(getattr(self, item.name), f"scope.{item.name}") for item in fields(self)]
        if not any(given):
            raise InvalidRequestError(
                "needs at least one of user_id, agent_id, run_id, actor_id, chat_id", path="scope"
            )
        _make_plain(self, "user_id", "agent_id", "run_id", "actor_id", "chat_id")

    @property
    def key(self) -> str:
        """The scope as one string, different for different scopes.

        >>> Scope(user_id="ada").key
        '{"user_id":"ada"}'
        """
        return _scope_key(self)


@functools.lru_cache(maxsize=1024)
def _scope_key(scope: Scope) -> str:
    given = {item.name: value for item in fields(scope) if (value := getattr(scope, item.name)) is not None}
    return json.dumps(given, ensure_ascii=False, separators=(",", ":"))


def check_scope(value: object, path: str = "scope") -> Scope:
    """A :class:`Scope`, never "any": None and look-alikes are refused.

    Raises:
        InvalidRequestError: For anything but a Scope.
    """
    if not isinstance(value, Scope):
        raise InvalidRequestError(f"must be a Scope, not {type(value).__name__}", path=path)
    return value


@dataclass(frozen=True, slots=True)
class Source(Value):
    """Where a record comes from. It shows the origin of a fact; it does not prove the fact.

    Args:
        kind: ``user``, ``assistant``, ``tool``, ``external`` or ``host``.
        digest: ``"sha256:"`` and the hex digest of the UTF-8 text that was read (see ``text_digest``).
        message_id: The message that was read.
        chat_id: Its conversation.
        run_id: The run of the agent.
        tool_call_id: The tool call.
        tool_name: The tool.
        uri: A document or page.

    >>> from vmem_core import text_digest
    >>> Source("user", text_digest("I like tea"), message_id="m1").kind
    'user'
    """

    kind: SourceKind
    digest: str
    message_id: str | None = None
    chat_id: str | None = None
    run_id: str | None = None
    tool_call_id: str | None = None
    tool_name: str | None = None
    uri: str | None = None

    def __post_init__(self) -> None:
        check_choice(self.kind, SOURCE_KINDS, "source.kind")
        digest = check_string(self.digest, "source.digest")
        if not _DIGEST.fullmatch(digest):
            raise InvalidRequestError(
                "must be 'sha256:' and 64 hex digits; use text_digest(text)", path="source.digest"
            )
        for name in ("message_id", "chat_id", "run_id", "tool_call_id", "tool_name", "uri"):
            if (value := getattr(self, name)) is not None:
                check_text(value, f"source.{name}")
        _make_plain(self, "kind", "digest", "message_id", "chat_id", "run_id", "tool_call_id", "tool_name", "uri")


@dataclass(frozen=True, slots=True)
class Link(Value):
    """A relation to another record, whose id is never looked up: that would tell of ids in other scopes.

    >>> Link("about", "r1").relation
    'about'
    """

    relation: str
    record_id: str

    def __post_init__(self) -> None:
        check_text(self.relation, "link.relation")
        check_text(self.record_id, "link.record_id")
        _make_plain(self, "relation", "record_id")


def check_metadata(value: object, path: str = "metadata") -> dict[str, Any]:
    """A JSON object, copied; None is an empty one.

    Raises:
        InvalidRequestError: For anything else, with the path of the fault.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidRequestError(f"must be a dict, not {type(value).__name__}", path=path)
    copied: dict[str, Any] = copy_json(dict(value), path) if value else {}
    return copied


def check_ttl(value: object, path: str = "ttl") -> timedelta | None:
    """None, or a positive time to live.

    Raises:
        InvalidRequestError: For anything else.
    """
    if value is None:
        return None
    if not isinstance(value, timedelta) or value <= timedelta(0):
        raise InvalidRequestError("must be a positive timedelta, or None for no expiry", path=path)
    return value


@dataclass(frozen=True, slots=True)
class Draft(Value):
    """A record to be: what ``remember_many`` takes.

    Args:
        text: What to remember, stored exactly as given.
        id: An id of your own; None: one is made.
        kind: ``semantic``, ``episodic``, ``working`` or ``procedural``.
        sources: Where it comes from; None or empty: the host, with the digest of the text.
        links: Relations to other records.
        importance: None, or 0 to 1.
        metadata: A JSON object, copied.
        ttl: How long until it expires, counted from the commit.

    Raises:
        InvalidRequestError: For a wrong field, named by its path.

    >>> Draft("Ada likes tea", metadata={"topic": "drinks"}).kind
    'semantic'
    """

    text: str
    id: str | None = None
    kind: Kind = "semantic"
    sources: tuple[Source, ...] | None = None
    links: tuple[Link, ...] = ()
    importance: float | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    ttl: timedelta | None = None

    _decoders: ClassVar[Any] = {"sources": many(Source), "links": many(Link), "ttl": decode_span}

    def __post_init__(self) -> None:
        check_text(self.text, "text")
        check_optional_text(self.id, "id")
        check_choice(self.kind, KINDS, "kind")
        given = None if self.sources is None else check_values(self.sources, Source, "sources")
        _set(self, "sources", given or None)
        _set(self, "links", check_values(self.links, Link, "links"))
        _set(self, "importance", check_importance(self.importance))
        _set(self, "metadata", check_metadata(self.metadata))
        check_ttl(self.ttl)
        _make_plain(self, "text", "id", "kind")

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, repr=False)
class Record(Value):
    """One revision of a record.

    Args:
        id: The record's id, the same for its whole life.
        revision: From 1.
        scope: Whose memory it is.
        text: What is remembered.
        kind: ``semantic``, ``episodic``, ``working`` or ``procedural``.
        origin: ``asserted`` by the host or ``inferred`` by a model.
        status: ``active`` or ``retracted``.
        sources: At least one.
        links: Relations to other records.
        importance: None, or 0 to 1.
        metadata: A JSON object; the copy is yours.
        created_at: When revision 1 was committed (UTC).
        recorded_at: When this revision was committed (UTC).
        expires_at: From this instant on it is hidden; None: never.
        operation_id: The operation that wrote this revision.
        scope_revision: The scope's revision that this write made: the true order of writes.

    Raises:
        InvalidRequestError: For a wrong field, named by its path.
    """

    id: str
    revision: int
    scope: Scope
    text: str
    kind: Kind
    origin: Origin
    status: Status
    sources: tuple[Source, ...]
    links: tuple[Link, ...]
    importance: float | None
    metadata: dict[str, Any]
    created_at: datetime
    recorded_at: datetime
    expires_at: datetime | None
    operation_id: str
    scope_revision: int

    _decoders: ClassVar[Any] = {
        "scope": single(Scope),
        "sources": many(Source),
        "links": many(Link),
        "created_at": decode_instant,
        "recorded_at": decode_instant,
        "expires_at": decode_instant,
    }

    @property
    def source_kinds(self) -> tuple[SourceKind, ...]:
        """The kinds of its sources, each once, in order."""
        return tuple(dict.fromkeys(source.kind for source in self.sources))

    def __post_init__(self) -> None:
        check_text(self.id, "id")
        check_integer(self.revision, "revision", least=1)
        check_scope(self.scope)
        check_text(self.text, "text")
        check_choice(self.kind, KINDS, "kind")
        check_choice(self.origin, ORIGINS, "origin")
        check_choice(self.status, STATUSES, "status")
        _set(self, "sources", check_values(self.sources, Source, "sources"))
        if not self.sources:
            raise InvalidRequestError("needs at least one source", path="sources")
        _set(self, "links", check_values(self.links, Link, "links"))
        _set(self, "importance", check_importance(self.importance))
        _set(self, "metadata", check_metadata(self.metadata))
        for name in ("created_at", "recorded_at", "expires_at"):
            if name != "expires_at" or self.expires_at is not None:
                _set(self, name, check_instant(getattr(self, name), name))
        check_text(self.operation_id, "operation_id")
        check_integer(self.scope_revision, "scope_revision", least=1)
        _make_plain(self, "id", "text", "kind", "origin", "status", "operation_id")

    def __hash__(self) -> int:
        return hash((self.id, self.revision))

    def __repr__(self) -> str:
        state = f"{self.kind}, {self.origin}, {self.status}"
        named = display.visible(repr(self.id))
        return f"Record({display.quoted(self.text)}, id={named}, revision={self.revision}, {state})"

    def _repr_html_(self) -> str:
        return display.record(self.to_json())
