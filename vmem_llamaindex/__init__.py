"""Versioned memory for LlamaIndex: chat memory, tools and agents, a retriever, models.

Names are loaded when they are first used: each costs only the part of LlamaIndex that it needs. Inside a workflow the
tools know the run and the call: what is repeated after a crash applies once, and one agent serves many users.
"""

from importlib import import_module
from typing import Any

from vmem_llamaindex.binding import MemoryRequest, bind_session

__all__ = [
    "MemoryRequest",
    "bind_session",
]

_HOMES: dict[str, str] = {}  # the module of each name that is loaded when it is first used


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"vmem_llamaindex.{home}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
