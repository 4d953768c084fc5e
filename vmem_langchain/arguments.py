"""What a model may pass to the memory tools, as LangChain wants to be told it.

Owns the place of the graph's runtime in the schemas and the answer to arguments that do not fit. Does not own the
schemas (``vmem_core``) or what is done with them (``tools.py``).
"""

from __future__ import annotations

from typing import Annotated, Any

from langchain_core.tools import InjectedToolArg
from pydantic import AfterValidator, BaseModel, create_model
from pydantic.json_schema import SkipJsonSchema

from vmem_core import ModelTool, ToolAnswer, model_tools
from vmem_langchain.identity import is_runtime


def _check_runtime(value: Any) -> Any:
    if value is None or is_runtime(value):
        return value
    raise ValueError("comes from the graph alone")


# ToolNode fills it because of its name, after it dropped whatever the model wrote there. Last in each schema: a tool
# that is called with a plain string takes it for the first field.
_Runtime = Annotated[SkipJsonSchema[Any], InjectedToolArg, AfterValidator(_check_runtime)]


def _schema(tool: ModelTool) -> type[BaseModel]:
    fields: dict[str, Any] = {"runtime": (_Runtime, None)}
    return create_model(tool.arguments.__name__, __base__=tool.arguments, __module__=__name__, **fields)


# By name in this module, so that a tool can be pickled.
RememberArguments, RecallArguments, ReviseArguments, RetractArguments = map(_schema, model_tools().values())

SCHEMAS: dict[str, type[BaseModel]] = {
    "remember": RememberArguments,
    "recall": RecallArguments,
    "revise": ReviseArguments,
    "retract": RetractArguments,
}


def refuse_arguments(error: Any) -> str:
    """The answer to arguments that do not fit a schema: data with the path of the first fault, never the value.

    >>> try:
    ...     SCHEMAS["recall"](query="tea", top_k=50)
    ... except ValueError as fault:
    ...     print(refuse_arguments(fault))
    {"error":"invalid_request","detail":"top_k"}
    """
    path = error.errors(include_url=False, include_context=False, include_input=False)[0]["loc"] or ("arguments",)
    return ToolAnswer.invalid_request(str(path[0])).text
