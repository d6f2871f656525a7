"""JSON Schema (2020-12, as used by OpenAPI 3.1) of our types, from msgspec's type information."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, inspect


class Schemas:
    """Collects the schema of every struct under its name, so that each is written once."""

    def __init__(self) -> None:
        self.components: dict[str, dict[str, Any]] = {}

    def of(self, kind: Any) -> dict[str, Any]:
        return self._of(inspect.type_info(kind))

    def _of(self, info: inspect.Type) -> dict[str, Any]:
        match info:
            case inspect.Metadata(extra={"any_of": kinds}):
                return {"anyOf": [self.of(kind) for kind in kinds]}
            case inspect.Metadata(extra={"documented": kind}):
                return self.of(kind)
            case inspect.Metadata():
                return self._of(info.type)
            case inspect.AnyType() | inspect.RawType():
                return {}
            case inspect.NoneType():
                return {"type": "null"}
            case inspect.BoolType():
                return {"type": "boolean"}
            case inspect.IntType():
                return {"type": "integer", **_bounds(info)}
            case inspect.FloatType():
                return {"type": "number", **_bounds(info)}
            case inspect.StrType():
                return {"type": "string", **_lengths(info, "Length")}
            case inspect.BytesType():
                return {"type": "string", "contentEncoding": "base64"}
            case inspect.DateTimeType():
                return {"type": "string", "format": "date-time"}
            case inspect.EnumType():
                return {"type": "string", "enum": [str(member.value) for member in info.cls]}
            case inspect.LiteralType():
                return {"enum": list(info.values)}
            case inspect.ListType() | inspect.VarTupleType():
                return {"type": "array", "items": self._of(info.item_type), **_lengths(info, "Items")}
            case inspect.DictType():
                return {"type": "object", "additionalProperties": self._of(info.value_type)}
            case inspect.UnionType():
                return self._union(info)
            case inspect.StructType():
                return self._struct(info)
            case _:
                raise TypeError(f"{info} cannot be part of the API")

    def _union(self, info: inspect.UnionType) -> dict[str, Any]:
        shapes = [self._of(one) for one in info.types]
        if {} in shapes:
            return {}
        kinds = {one.get("type") for one in shapes}
        if kinds == {"integer", "number"}:
            return {"type": "number"}
        if len(shapes) == 2 and {"type": "null"} in shapes:
            other = next(one for one in shapes if one != {"type": "null"})
            if isinstance(other.get("type"), str) and "enum" not in other:
                return {**other, "type": [other["type"], "null"]}
        return {"anyOf": shapes}

    def _struct(self, info: inspect.StructType) -> dict[str, Any]:
        name = info.cls.__name__
        if name not in self.components:
            schema: dict[str, Any] = {"type": "object", "properties": {}}
            self.components[name] = schema
            if info.cls.__doc__:
                schema["description"] = info.cls.__doc__.strip()
            required = []
            if info.tag_field is not None:
                schema["properties"][info.tag_field] = {"const": info.tag}
                required.append(info.tag_field)
            for field in info.fields:
                schema["properties"][field.encode_name] = self._field(field)
                if field.required:
                    required.append(field.encode_name)
            if required:
                schema["required"] = required
            if info.forbid_unknown_fields:
                schema["additionalProperties"] = False
        return {"$ref": f"#/components/schemas/{name}"}

    def _field(self, field: inspect.Field) -> dict[str, Any]:
        kind = field.type
        if isinstance(kind, inspect.UnionType):
            types = tuple(
                one for one in kind.types if not isinstance(one, inspect.CustomType) or one.cls is not type(UNSET)
            )
            kind = types[0] if len(types) == 1 else inspect.UnionType(types)
        schema = self._of(kind)
        default = field.default
        if not isinstance(default, (bool, int, float, str, tuple)):
            return schema
        return {**schema, "default": default}


def _bounds(info: inspect.IntType | inspect.FloatType) -> dict[str, Any]:
    names = {"ge": "minimum", "le": "maximum", "gt": "exclusiveMinimum", "lt": "exclusiveMaximum"}
    return {given: value for name, given in names.items() if (value := getattr(info, name)) is not None}


def _lengths(info: inspect.StrType | inspect.ListType | inspect.VarTupleType, what: str) -> dict[str, Any]:
    found = {f"min{what}": info.min_length, f"max{what}": info.max_length, "pattern": getattr(info, "pattern", None)}
    return {name: value for name, value in found.items() if value is not None}
