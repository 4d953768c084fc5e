"""Whose memory: the session of a run, and the names under which saved contexts find their sessions again.

Owns what a resolver is told and the bindings of this process. Does not own how a resolver is called (``vmem_core``) or
operation ids (``identity.py``). Imports LlamaIndex nowhere.

What is saved with a context is a name and never a session, a store or a credential: a name is all that is needed to
find the session again, and all that may lie in a database of contexts.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from vmem_core import InvalidRequestError, MemorySession, check_session_source, store_digest

if TYPE_CHECKING:
    from workflows import Context

LOG = logging.getLogger("vmem_llamaindex")
LOG.addHandler(logging.NullHandler())  # silent until the host gives it a handler

_MOST_OF_A_NAME = 512


@dataclass(frozen=True, slots=True)
class MemoryRequest:
    """What a resolver may look at to choose the session of a run. The model can write none of it.

    Args:
        context: The workflow's ``Context``; ``await context.store.get("user_id")`` reads what the host put there. None
            outside of a workflow.
        binding: The name under which a chat memory was bound; None if it is not a chat memory that asks.
        session_id: Of the chat memory's conversation, by which a host knows whose it is also outside of a workflow;
            None if it is not a chat memory that asks.

    >>> MemoryRequest(binding="support-bot").binding
    'support-bot'
    """

    context: Context[Any] | None = None
    binding: str | None = None
    session_id: str | None = None


SessionResolver: TypeAlias = Callable[[MemoryRequest], MemorySession | Awaitable[MemorySession | None] | None]


# --- the bindings of this process ---------------------------------------------------------------------------------

_LOCK = threading.Lock()
_BOUND: dict[str, MemorySession | SessionResolver] = {}


def bind_session(binding: str, session: MemorySession | SessionResolver) -> None:
    """Give a session, or a resolver, the name under which saved contexts of this process find it again.

    A chat memory is saved with its context as this name. A process that restores contexts binds the same name when it
    starts, before ``Context.from_dict``. For many users bind one resolver, which is asked at each run.

    Bound again, a name gives the new session; but a session of another scope is refused, since contexts that were
    saved under the name belong to the scope that it had. A session of an equal scope in another store takes the name:
    contexts that this process made for the first store are then refused, those of an earlier process go on in the new
    one. Two stores that are used side by side need two names, or one resolver.

    Args:
        binding: The name, 1 to 512 characters, such as ``"support-bot"``.
        session: What it stands for.

    Raises:
        InvalidRequestError: For a wrong argument, or a name that stands for another scope.

    >>> from vmem_core import InMemoryStore, Scope
    >>> bind_session("notes", MemorySession(InMemoryStore(), Scope(user_id="ada")))
    >>> bind_session("notes", MemorySession(InMemoryStore(), Scope(user_id="bob")))
    Traceback (most recent call last):
    vmem_core.errors.InvalidRequestError: binding: stands for another scope in this process; choose another name
    """
    name, checked = check_binding(binding), check_session_source(session, "session")
    with _LOCK:
        before = _BOUND.get(name)
        if isinstance(before, MemorySession) and isinstance(checked, MemorySession):
            _check_scope(before, checked)
        _BOUND[name] = checked


def bind_own_session(binding: str, session: MemorySession) -> None:
    """Bind the session of a memory, unless a resolver that finds the session of each run has the name.

    Raises:
        InvalidRequestError: For a wrong name, or one that stands for another scope, or for an equal one in another
            store: two tenants may each have a user ``"1"``.
    """
    name = check_binding(binding)
    with _LOCK:
        before = _BOUND.get(name)
        if before is not None and not isinstance(before, MemorySession):
            return
        if before is not None:
            _check_scope(before, session)
            if store_digest(before.store) != store_digest(session.store):
                raise InvalidRequestError(
                    "stands for an equal scope in another store; choose a name for each store, bind one resolver, or, "
                    "if this store takes the other's place, call bind_session first",
                    path="binding",
                )
        _BOUND[name] = session


def _check_scope(before: MemorySession, session: MemorySession) -> None:
    if before.scope.key != session.scope.key:
        raise InvalidRequestError("stands for another scope in this process; choose another name", path="binding")


def bound_session(binding: str) -> MemorySession | SessionResolver:
    """What a name stands for in this process.

    Raises:
        InvalidRequestError: If it stands for nothing here: it was never bound, or by another process alone.
    """
    name = check_binding(binding)
    with _LOCK:
        found = _BOUND.get(name)
    if found is None:
        raise InvalidRequestError(
            f"{name!r} is bound to no session in this process; call bind_session({name!r}, session) before the "
            "context is restored",
            path="binding",
        )
    return found


def check_binding(binding: object) -> str:
    """The name of a binding.

    Raises:
        InvalidRequestError: For anything but a string of 1 to 512 characters that is not blank.
    """
    if not isinstance(binding, str) or not binding.strip() or len(binding) > _MOST_OF_A_NAME:
        raise InvalidRequestError(f"must be a name of 1 to {_MOST_OF_A_NAME} characters", path="binding")
    return binding
