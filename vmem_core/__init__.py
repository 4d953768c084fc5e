"""Versioned memory for agents: records with one id for life, revisions, provenance and durable receipts."""

from vmem_core.context import ContextItem, ContextPackage
from vmem_core.errors import (
    AssertedRecordError,
    BudgetExceededError,
    EmbeddingMismatchError,
    InvalidRequestError,
    OperationConflictError,
    RecordConflictError,
    RecordNotFoundError,
    RevisionConflictError,
    SchemaVersionError,
    StoreUnavailableError,
    UnsupportedError,
    VmemError,
)
from vmem_core.exports import export_jsonl, import_jsonl
from vmem_core.ledger import Totals, UsageLedger, genai_prices_source
from vmem_core.legacy.deuz_markdown import from_deuz_markdown
from vmem_core.legacy.deuz_postgres import from_deuz_postgres
from vmem_core.legacy.deuz_redis import from_deuz_redis
from vmem_core.legacy.deuz_sqlite import from_deuz_sqlite
from vmem_core.legacy.importing import import_legacy
from vmem_core.legacy.items import from_items
from vmem_core.legacy.jsonl import from_jsonl
from vmem_core.legacy.langgraph import from_langgraph_store
from vmem_core.legacy.mem0 import from_mem0
from vmem_core.legacy.records import LegacyRecord
from vmem_core.limits import Limits
from vmem_core.messages import ExtractionPolicy, Message, ToolCall
from vmem_core.models import Embeddings, LLMReply, LocalEmbedder, Prompt, Usage, accounted
from vmem_core.operations import UNSET
from vmem_core.progress import ProgressBar
from vmem_core.records import Draft, Link, Record, Scope, Source
from vmem_core.resolvers import aresolve_session, check_session_source, resolve_session
from vmem_core.results import (
    Change,
    Finding,
    ForgetEvent,
    ForgetResult,
    ForgetScopeResult,
    Generation,
    Hit,
    ImportResult,
    Note,
    Page,
    Receipt,
    ReembedResult,
    WriteResult,
)
from vmem_core.session import MemorySession
from vmem_core.store import Store
from vmem_core.stores.memory import InMemoryStore
from vmem_core.stores.postgres import PostgresStore
from vmem_core.stores.sqlite import SqliteStore
from vmem_core.sync import run_sync
from vmem_core.text import mend_string, text_digest
from vmem_core.tools import ModelTool, ToolAnswer, check_count, model_tools

__all__ = [
    "UNSET",
    "AssertedRecordError",
    "BudgetExceededError",
    "Change",
    "ContextItem",
    "ContextPackage",
    "Draft",
    "EmbeddingMismatchError",
    "Embeddings",
    "ExtractionPolicy",
    "Finding",
    "ForgetEvent",
    "ForgetResult",
    "ForgetScopeResult",
    "Generation",
    "Hit",
    "ImportResult",
    "InMemoryStore",
    "InvalidRequestError",
    "LLMReply",
    "LegacyRecord",
    "Limits",
    "Link",
    "LocalEmbedder",
    "MemorySession",
    "Message",
    "ModelTool",
    "Note",
    "OperationConflictError",
    "Page",
    "PostgresStore",
    "ProgressBar",
    "Prompt",
    "Receipt",
    "Record",
    "RecordConflictError",
    "RecordNotFoundError",
    "ReembedResult",
    "RevisionConflictError",
    "SchemaVersionError",
    "Scope",
    "Source",
    "SqliteStore",
    "Store",
    "StoreUnavailableError",
    "ToolAnswer",
    "ToolCall",
    "Totals",
    "UnsupportedError",
    "Usage",
    "UsageLedger",
    "VmemError",
    "WriteResult",
    "accounted",
    "aresolve_session",
    "check_count",
    "check_session_source",
    "export_jsonl",
    "from_deuz_markdown",
    "from_deuz_postgres",
    "from_deuz_redis",
    "from_deuz_sqlite",
    "from_items",
    "from_jsonl",
    "from_langgraph_store",
    "from_mem0",
    "genai_prices_source",
    "import_jsonl",
    "import_legacy",
    "mend_string",
    "model_tools",
    "resolve_session",
    "run_sync",
    "text_digest",
]
