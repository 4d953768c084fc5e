"""What a caller may import: named, documented, sorted, and cheap to load."""

from __future__ import annotations

import importlib
import inspect
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = [path.parent.name for path in sorted(ROOT.glob("vmem_*/__init__.py"))]

# Names that callers have been promised. They may gain company; they are never renamed or dropped without a new major.
PROMISED = {
    "vmem_core": {
        "Change", "Draft", "Embeddings", "EmbeddingMismatchError", "BudgetExceededError", "Finding", "ForgetEvent",
        "ForgetResult", "ForgetScopeResult", "Generation", "Hit", "InMemoryStore", "InvalidRequestError", "Limits",
        "Link", "LocalEmbedder", "MemorySession", "Note", "OperationConflictError", "Page", "Receipt", "Record",
        "RecordConflictError", "RecordNotFoundError", "ReembedResult", "RevisionConflictError", "SchemaVersionError",
        "Scope", "Source", "SqliteStore", "StoreUnavailableError", "UnsupportedError", "Usage", "VmemError",
        "WriteResult",
        "ImportResult", "LegacyRecord", "from_items", "from_jsonl", "from_langgraph_store", "from_mem0",
        "export_jsonl", "from_deuz_markdown", "from_deuz_postgres", "from_deuz_redis", "from_deuz_sqlite",
        "import_jsonl", "import_legacy", "ProgressBar",
        "ContextBudget", "FirstLoop", "ForgottenTexts", "batch_turns", "check_count", "derived_id", "extraction_id",
        "has_memory_labels", "is_memory_answer", "is_memory_record", "is_unparsed", "looks_observed", "read_json",
        "read_turns", "required_session", "split_turns", "store_digest",
        "holds_memory", "tells_of_failure", "without_rendered",
    },
    "vmem_langchain": {
        "ChatMemory", "LangChainEmbedder", "LangChainLLM", "MemoryMiddleware", "MemoryRequest", "MemoryRetriever",
        "aredact_thread", "create_memory_tools", "redact_thread",
    },
    "vmem_llamaindex": {
        "LlamaIndexEmbedder", "LlamaIndexLLM", "MemoryRequest", "MemoryRetriever", "MemoryToolSpec",
        "VersionedAgentWorkflow", "VersionedFunctionAgent", "VersionedMemory", "VersionedMemoryBlock",
        "VersionedReActAgent", "aredact_chat_store", "bind_chat_store", "bind_session", "create_memory_tools",
        "redact_chat_store", "redact_context",
    },
}  # fmt: skip

VERBS = {
    "remember", "remember_many", "revise", "retract", "forget", "forget_scope", "recall", "get", "history", "receipt",
    "list", "count", "scope_revision", "extract", "compile_context", "render", "reembed",
}  # fmt: skip

# Loaded when first used, never by the import itself.
HEAVY = {"aiosqlite", "bm25s", "json_repair", "numpy", "opentelemetry", "pydantic", "sqlite3", "Stemmer", "tenacity"}


@pytest.fixture(params=PACKAGES)
def package(request: pytest.FixtureRequest):
    return importlib.import_module(request.param)


def test_all_is_sorted_and_every_name_resolves(package) -> None:
    names = list(package.__all__)
    assert names == sorted(names, key=_place)
    assert len(set(names)) == len(names)
    for name in names:
        assert getattr(package, name) is not None
    assert set(names) <= set(dir(package))


def _place(name: str) -> tuple[int, str]:
    """Constants first, then classes, then functions; each by name."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def test_promised_names_are_exported(package) -> None:
    missing = PROMISED.get(package.__name__, set()) - set(package.__all__)
    assert not missing


def test_an_unknown_name_is_an_attribute_error(package) -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = package.no_such_name


def test_every_exported_class_and_function_is_documented(package) -> None:
    undocumented = []
    for name in package.__all__:
        value = getattr(package, name)
        if not (inspect.isclass(value) or inspect.isroutine(value)):
            continue  # an alias of a type; the module that defines it says what it is
        if not _says_something(value):
            undocumented.append(name)
        if inspect.isclass(value):
            undocumented += [f"{name}.{method}" for method in _public_methods(value)]
    assert not undocumented


def _says_something(value: object) -> bool:
    doc = inspect.getdoc(value) or ""
    # A dataclass without a docstring gets its own signature for one.
    return bool(doc) and not doc.startswith(f"{getattr(value, '__name__', '')}(")


def _public_methods(cls: type) -> list[str]:
    """Public methods and properties that the class itself defines and nobody documents, here or in a parent."""
    return [
        name
        for name, member in vars(cls).items()
        if not name.startswith("_")
        and (inspect.isroutine(member) or isinstance(member, property | classmethod | staticmethod))
        and not _says_something(getattr(cls, name))
    ]


def test_a_session_has_every_verb_and_its_sync_side_the_same_arguments() -> None:
    core = importlib.import_module("vmem_core")
    session = core.MemorySession(core.InMemoryStore(), core.Scope(user_id="ada"))
    for verb in VERBS:
        arguments = inspect.signature(getattr(session, verb)).parameters
        assert list(inspect.signature(getattr(session.sync, verb)).parameters) == list(arguments), verb


def loaded_by(statement: str) -> set[str]:
    """The modules that a statement loads in a fresh interpreter, by their full names."""
    code = (
        f"import sys; old = set(sys.modules)\n{statement}\nimport json; print(json.dumps(sorted(set(sys.modules)-old)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_importing_the_core_loads_the_standard_library_and_itself_only() -> None:
    roots = {name.partition(".")[0] for name in loaded_by("import vmem_core")}
    assert not roots & HEAVY
    foreign = {name for name in roots - set(sys.stdlib_module_names) - {"vmem_core"} if not name.startswith("_")}
    assert not foreign


def test_naming_every_value_of_the_core_loads_no_driver_and_no_framework() -> None:
    loaded = loaded_by("from vmem_core import Draft, Hit, MemorySession, Receipt, Record, Scope, SqliteStore")
    roots = {name.partition(".")[0] for name in loaded}
    assert not roots & {"langchain", "langchain_core", "langgraph", "llama_index", "opentelemetry", "psycopg"}


def test_importing_the_llamaindex_adapter_loads_nothing_of_the_framework() -> None:
    loaded = loaded_by("from vmem_llamaindex import MemoryRequest, bind_session")
    assert not {name.partition(".")[0] for name in loaded} & {"llama_index", "workflows", "pydantic", "numpy"}


def test_what_the_hub_of_llamaindex_is_told_is_there() -> None:
    told = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["llamahub"]
    package = importlib.import_module(told["import_path"])
    assert set(told["class_authors"]) <= set(package.__all__)
