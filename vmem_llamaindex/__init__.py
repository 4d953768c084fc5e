"""Versioned memory for LlamaIndex: chat memory, tools and agents, a retriever, models.

Names are loaded when they are first used: each costs only the part of LlamaIndex that it needs. Inside a workflow the
tools know the run and the call: what is repeated after a crash applies once, and one agent serves many users.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vmem_llamaindex.binding import MemoryRequest, bind_session

if TYPE_CHECKING:
    from vmem_llamaindex.agents import (
        KnowsItsCalls,
        VersionedAgentWorkflow,
        VersionedFunctionAgent,
        VersionedReActAgent,
    )
    from vmem_llamaindex.block import VersionedMemoryBlock
    from vmem_llamaindex.identity import prepare_context, tool_call_scope
    from vmem_llamaindex.llm import LlamaIndexLLM
    from vmem_llamaindex.memory import VersionedMemory
    from vmem_llamaindex.memory_history import bind_chat_store
    from vmem_llamaindex.models import LlamaIndexEmbedder
    from vmem_llamaindex.redaction import (
        LeftCopy,
        RedactionReport,
        aredact_chat_store,
        redact_chat_store,
        redact_context,
    )
    from vmem_llamaindex.retriever import MemoryRetriever
    from vmem_llamaindex.tools import MemoryToolSpec, create_memory_tools

__all__ = [
    "KnowsItsCalls",
    "LeftCopy",
    "LlamaIndexEmbedder",
    "LlamaIndexLLM",
    "MemoryRequest",
    "MemoryRetriever",
    "MemoryToolSpec",
    "RedactionReport",
    "VersionedAgentWorkflow",
    "VersionedFunctionAgent",
    "VersionedMemory",
    "VersionedMemoryBlock",
    "VersionedReActAgent",
    "aredact_chat_store",
    "bind_chat_store",
    "bind_session",
    "create_memory_tools",
    "prepare_context",
    "redact_chat_store",
    "redact_context",
    "tool_call_scope",
]

_HOMES = {
    "KnowsItsCalls": "agents",
    "LeftCopy": "redaction",
    "LlamaIndexEmbedder": "models",
    "LlamaIndexLLM": "llm",
    "MemoryRetriever": "retriever",
    "MemoryToolSpec": "tools",
    "RedactionReport": "redaction",
    "VersionedAgentWorkflow": "agents",
    "VersionedFunctionAgent": "agents",
    "VersionedMemory": "memory",
    "VersionedMemoryBlock": "block",
    "VersionedReActAgent": "agents",
    "aredact_chat_store": "redaction",
    "bind_chat_store": "memory_history",
    "create_memory_tools": "tools",
    "prepare_context": "identity",
    "redact_chat_store": "redaction",
    "redact_context": "redaction",
    "tool_call_scope": "identity",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"vmem_llamaindex.{home}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
