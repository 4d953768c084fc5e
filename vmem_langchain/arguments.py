"""What a model may pass to the memory tools, and nothing else.

Owns the four schemas, the mending of a model's strings and the answer to arguments that do not fit. Does not own what
is done with them (``tools.py``).
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeAlias

from langchain_core.tools import InjectedToolArg
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from vmem_core import InvalidRequestError, mend_string
from vmem_langchain.identity import is_runtime

Kind: TypeAlias = Literal["semantic", "episodic", "working", "procedural"]

_MOST_RESULTS = 1_000
_MOST_OF_A_NAME = 64


def _mend(value: Any) -> Any:
    # Before pydantic looks: it refuses half a surrogate pair, and the fact would be lost.
    return mend_string(value) if isinstance(value, str) else value


def _check_runtime(value: Any) -> Any:
    if value is None or is_runtime(value):
        return value
    raise ValueError("comes from the graph alone")


_Text = Annotated[str, BeforeValidator(_mend)]
_OptionalKind = Annotated[
    Kind | None,
    Field(
        description="semantic: a fact (the default); episodic: something that happened; working: of use for now; "
        "procedural: how to do something."
    ),
]
_Importance = Annotated[float | None, Field(ge=0, le=1, description="How much it matters, from 0 to 1.")]
_Id = Annotated[_Text, Field(description="The record's id, as memory reported it.")]
_Revision = Annotated[
    int, Field(ge=1, description="The record's revision that you have seen; if another one is current, it is refused.")
]
# ToolNode fills it because of its name, after it dropped whatever the model wrote there. Last in each schema: a tool
# that is called with a plain string takes it for the first field.
_Runtime = Annotated[SkipJsonSchema[Any], InjectedToolArg, AfterValidator(_check_runtime)]


class RememberArguments(BaseModel):
    """Arguments of remember."""

    model_config = ConfigDict(extra="forbid")

    text: Annotated[_Text, Field(description="One fact in one sentence that can be understood alone.")]
    kind: _OptionalKind = None
    importance: _Importance = None
    runtime: _Runtime = None


class RecallArguments(BaseModel):
    """Arguments of recall."""

    model_config = ConfigDict(extra="forbid")

    query: Annotated[_Text, Field(description="What to look for, in plain words.")]
    kind: Annotated[Kind | None, Field(description="Only records of this kind.")] = None
    runtime: _Runtime = None


class ReviseArguments(BaseModel):
    """Arguments of revise."""

    model_config = ConfigDict(extra="forbid")

    id: _Id
    expected_revision: _Revision
    text: Annotated[_Text | None, Field(description="The new text; leave it out to keep the old one.")] = None
    kind: _OptionalKind = None
    importance: _Importance = None
    runtime: _Runtime = None


class RetractArguments(BaseModel):
    """Arguments of retract."""

    model_config = ConfigDict(extra="forbid")

    id: _Id
    expected_revision: _Revision
    runtime: _Runtime = None


def refuse_arguments(error: Any) -> str:
    """The answer to arguments that do not fit a schema: data with the path of the first fault, never the value.

    >>> try:
    ...     RecallArguments(query="tea", top_k=50)
    ... except ValueError as fault:
    ...     print(refuse_arguments(fault))
    {"error":"invalid_request","detail":"top_k"}
    """
    path = error.errors(include_url=False, include_context=False, include_input=False)[0]["loc"] or ("arguments",)
    return answer_text(invalid_request(str(path[0])))


def invalid_request(path: str) -> dict[str, Any]:
    """The answer to a value that cannot be taken. A path may be a name that a model made up."""
    return {"error": "invalid_request", "detail": mend_string(path)[:_MOST_OF_A_NAME]}


def answer_text(answer: Any) -> str:
    """An answer as compact JSON, as the model reads it.

    >>> answer_text({"text": "お茶"})
    '{"text":"お茶"}'
    """
    return json.dumps(answer, ensure_ascii=False, separators=(",", ":"))


def check_count(value: object, path: str) -> int:
    """How many results: 1 to 1,000.

    Raises:
        InvalidRequestError: For anything else.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST_RESULTS:
        raise InvalidRequestError(f"must be an integer from 1 to {_MOST_RESULTS}", path=path)
    return value
