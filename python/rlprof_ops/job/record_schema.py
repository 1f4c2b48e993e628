"""The JSON Schema of a record, from the annotations of its rows: the ones that it is made or read back by."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any

DRAFT = "https://json-schema.org/draft/2020-12/schema"
_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}


def row_schema(kind: Any, leave_out: tuple[str, ...] = ()) -> dict[str, Any]:
    """The schema of a dataclass, all of its fields required, or of a TypedDict. Other rows in it are
    references to `$defs`.
    """
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = {name: type_schema(hint) for name, hint in hints.items() if name not in leave_out}
    needed = [name for name in fields if name in getattr(kind, "__required_keys__", fields)]
    return {"type": "object", "required": needed, "additionalProperties": False, "properties": fields}


def _is_row(hint: Any) -> bool:
    return dataclasses.is_dataclass(hint) or typing.is_typeddict(hint)


def type_schema(hint: Any) -> dict[str, Any]:
    """The schema of one field's type."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return type_schema(inner[0]) | {key: value for part in inner[1:] for key, value in part.items()}
    if origin in (typing.Union, types.UnionType):
        (found,) = (type_schema(each) for each in inner if each is not type(None))
        return found | {"type": [found["type"], "null"]}
    if origin in (tuple, list):
        return {"type": "array", "items": type_schema(inner[0])}
    if origin is dict:
        return {"type": "object"} | (
            {} if inner[1] is Any else {"additionalProperties": type_schema(inner[1])}
        )
    if _is_row(hint):
        return {"$ref": f"#/$defs/{hint.__name__}"}
    return {"type": _TYPES[hint]}
