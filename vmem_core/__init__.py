"""Versioned memory for agents: records with one id for life, revisions, provenance and durable receipts."""

from vmem_core.context import ContextBudget, ContextItem, ContextPackage, without_rendered
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
from vmem_core.forgotten_texts import ForgottenTexts
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
from vmem_core.messages import ExtractionPolicy, Message, ToolCall, tells_of_failure
from vmem_core.models import Embeddings, LLMReply, LocalEmbedder, Prompt, Usage, accounted
from vmem_core.operations import UNSET
from vmem_core.places import store_digest
from vmem_core.progress import ProgressBar
from vmem_core.records import Draft, Link, Record, Scope, Source
from vmem_core.resolvers import aresolve_session, check_session_source, required_session, resolve_session
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
from vmem_core.store import Store, check_count
from vmem_core.stores.memory import InMemoryStore
from vmem_core.stores.postgres import PostgresStore
from vmem_core.stores.sqlite import SqliteStore
from vmem_core.sync import FirstLoop, run_sync
from vmem_core.text import derived_id, mend_string, read_json, text_digest
from vmem_core.tool_answers import ToolAnswer, has_memory_labels, holds_memory, is_memory_answer, is_memory_record
from vmem_core.tools import ModelTool, model_tools
from vmem_core.turns import batch_turns, extraction_id, is_unparsed, looks_observed, read_turns, split_turns

__all__ = [
    "UNSET",
    "AssertedRecordError",
    "BudgetExceededError",
    "Change",
    "ContextBudget",
    "ContextItem",
    "ContextPackage",
    "Draft",
    "EmbeddingMismatchError",
    "Embeddings",
    "ExtractionPolicy",
    "Finding",
    "FirstLoop",
    "ForgetEvent",
    "ForgetResult",
    "ForgetScopeResult",
    "ForgottenTexts",
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
    "batch_turns",
    "check_count",
    "check_session_source",
    "derived_id",
    "export_jsonl",
    "extraction_id",
    "from_deuz_markdown",
    "from_deuz_postgres",
    "from_deuz_redis",
    "from_deuz_sqlite",
    "from_items",
    "from_jsonl",
    "from_langgraph_store",
    "from_mem0",
    "genai_prices_source",
    "has_memory_labels",
    "holds_memory",
    "import_jsonl",
    "import_legacy",
    "is_memory_answer",
    "is_memory_record",
    "is_unparsed",
    "looks_observed",
    "mend_string",
    "model_tools",
    "read_json",
    "read_turns",
    "required_session",
    "resolve_session",
    "run_sync",
    "split_turns",
    "store_digest",
    "tells_of_failure",
    "text_digest",
    "without_rendered",
]
