"""Serves one Python file as an MCP server, for usher.

    python3 -B -u shim.py NAME.usher.py

Every public function at the top level of the file is a tool: its annotations
become the JSON Schema, its docstring the description. JSON-RPC goes over stdin
and stdout, one message a line, as in every other runtime of usher.

In reading order: what is written (results), what is read (types and their
schemas), docstrings, a method, a call, the server, and how a file is loaded.
Python 3.9 and newer, the standard library only.
"""

import sys

if sys.version_info < (3, 9):
    sys.exit("usher needs Python 3.9 or newer; this is %s" % sys.version.split()[0])

import ast
import asyncio
import base64
import collections.abc as abc
import concurrent.futures
import dataclasses
import datetime
import decimal
import enum
import importlib.util
import inspect
import itertools
import json
import os
import pathlib
import re
import threading
import time
import traceback
import types
import typing
import uuid

PROTOCOLS = ("2025-11-25", "2025-06-18", "2025-03-26")
LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
MAX_PARTS = 5000  # of a schema: classes are written out where they are used, which can double at every step
MAX_LINE = 64 << 20  # bytes; usher drops longer ones, and an ask would wait for ever
PATIENCE = 0.6  # seconds that calls have to end once stdin has; usher sends TERM after 1
WEBHOOK = "_webhook"  # a webhook's metadata: filled in by usher, in no schema


class Fault(Exception):
    """A JSON-RPC error."""

    def __init__(self, code, message, data=None):
        super().__init__(message)
        self.body = {"code": code, "message": message}
        if data is not None:
            self.body["data"] = data


class Wrong(Fault):
    """The fault of one parameter, named by its path; text follows the name."""

    def __init__(self, path, text):
        super().__init__(-32602, 'parameter "%s"%s' % (path, text), {"parameter": path.split(".")[0]})
        self.path = path


# ---- What is written


def jsonable(value):
    """The JSON form of what json itself does not know, one level deep."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return enum_json(value)
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, (pathlib.PurePath, uuid.UUID, decimal.Decimal)):
        return str(value)
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    if isinstance(value, abc.Set):
        try:
            return sorted(value)  # the same answer every time, where there is an order
        except TypeError:
            return list(value)
    if isinstance(value, type):
        raise TypeError("the class %s" % value.__name__)
    if hasattr(value, "tolist"):  # numpy's arrays and numbers
        return value.tolist()
    if hasattr(value, "keys") and hasattr(value, "__getitem__"):  # any mapping, a sqlite3.Row
        return {key: value[key] for key in value.keys()}
    if isinstance(value, abc.Collection):
        return list(value)
    raise TypeError("a value of type %s" % type(value).__name__)


def enum_json(member):
    """An Enum member: its value, or its name where the values of its class are not all JSON's own."""
    plain = all(type(m.value) in (str, int, float, bool) for m in type(member))
    return member.value if plain else member.name


encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=jsonable).encode


def failure(message):
    """The tool result of a call that failed, as JSON."""
    return '{"content":[{"text":%s,"type":"text"}],"isError":true}' % encode(message)


def tool_result(value):
    """The tool result, as JSON, that a returned value is or becomes."""
    if value is None:
        return '{"content":[]}'
    structured = ""
    try:
        text = value if type(value) is str else encode(value)
    except Exception as e:  # NaN, a cycle, a type without a JSON form, or a property that raises
        return failure("the result can't be written as JSON: %s" % message_of(e))
    if type(value) is not str:
        if text == "null":
            return '{"content":[]}'
        if text[0] == '"':  # a datetime, say
            text = json.loads(text)
        elif text[0] == "{":
            if '"content":' in text and is_tool_result(json.loads(text)):
                return text
            structured = ',"structuredContent":' + text
    return '{"content":[{"text":%s,"type":"text"}]%s}' % (encode(text), structured)


def is_tool_result(value):
    """Tells a tool result from an object that merely has a field named content."""
    # A key that a result has not would be lost on the way to the client.
    if not set(value) <= {"content", "structuredContent", "isError", "_meta"}:
        return False
    kinds = ("text", "image", "audio", "resource", "resource_link")
    blocks = value.get("content")
    return isinstance(blocks, list) and all(isinstance(b, dict) and b.get("type") in kinds for b in blocks)


def message_of(e):
    """What an exception says, for who called."""
    try:
        text = str(e)
    except Exception:
        text = ""
    if isinstance(e, SystemExit):
        return "the method called sys.exit(%s)" % text
    if isinstance(e, KeyError):  # its text is the key alone
        return "KeyError: " + text
    return text or type(e).__name__


# ---- What is read: a Type is the JSON Schema of a Python type, and the function
# that makes a value of it from JSON. Keys stand in the order in which usher
# writes the schemas of Go modules, so that one method has one schema.

ORDER = ("$ref", "type", "description", "format", "contentEncoding", "enum", "items", "prefixItems", "minItems",
         "maxItems", "properties", "required", "additionalProperties", "anyOf", "default", "$defs")
ARTICLES = {"integer": "an integer", "array": "an array", "object": "an object", "null": "null"}
KINDS = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
REQUIRED = object()  # in the place of a default


def ordered(schema):
    return {key: schema[key] for key in ORDER if key in schema}


def kind(value):
    """Names a decoded value for people."""
    if value is None:
        return "null"
    name = "number" if type(value) in (int, float) else KINDS[type(value)]
    return ARTICLES.get(name, "a " + name)


def wanted(schema):
    """Names for people what a schema asks for."""
    if "enum" in schema:
        return "one of " + ", ".join(encode(v) for v in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(wanted(s) for s in schema["anyOf"])
    names = schema.get("type", "object")
    return " or ".join(ARTICLES.get(n, "a " + n) for n in ([names] if isinstance(names, str) else names))


class Type:
    """A schema without its null, whether null is allowed too, and the reader: read(value, path)."""

    def __init__(self, schema, read, null=False):
        self.schema, self.null = schema, null
        self.read = (lambda value, path: None if value is None else read(value, path)) if null else read

    def whole(self):
        """The schema with its null."""
        if not self.null or not self.schema:
            return self.schema
        if "type" not in self.schema:
            parts = self.schema.get("anyOf", [self.schema])
            return {"anyOf": parts + [{"type": "null"}]}
        names = self.schema["type"] if isinstance(self.schema["type"], list) else [self.schema["type"]]
        if "null" in names:
            return self.schema
        schema = {**self.schema, "type": names + ["null"]}
        if "enum" in schema:
            schema["enum"] = schema["enum"] + [None]
        return schema


def anything(value, path):
    return value


def read_plain(want):
    """A reader for which no value of another kind will do."""
    def read(value, path):
        if type(value) is not want:
            name = KINDS.get(want, "null")
            raise Wrong(path, ": want %s, got %s" % (ARTICLES.get(name, "a " + name), kind(value)))
        return value
    return read


def read_integer(value, path):
    if type(value) is float and value.is_integer():
        return int(value)
    if type(value) is not int:  # which a bool is not
        raise Wrong(path, ": want an integer, got %s" % (value if type(value) is float else kind(value)))
    return value


def read_number(value, path):
    if type(value) not in (int, float):
        raise Wrong(path, ": want a number, got " + kind(value))
    try:
        return float(value)
    except OverflowError:
        return value


def read_text(convert, example):
    """A reader of what is written as a string."""
    def read(value, path):
        read_plain(str)(value, path)
        try:
            return convert(value)
        except (ValueError, ArithmeticError):
            raise Wrong(path, ": want %s, got %s" % (example, encode(value[:100]))) from None
    return read


def to_datetime(text):
    # Python before 3.11 reads neither Z nor a fraction that is not of 3 or 6 digits.
    m = re.fullmatch(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d)(:\d\d)?(\.\d+)?([Zz]|[+-]\d\d:\d\d)?", text, re.ASCII)
    if not m:
        raise ValueError(text)
    day, minute, second, fraction, zone = m.groups("")
    text = day + "T" + minute + (second or ":00") + "." + (fraction[1:7]).ljust(6, "0")
    return datetime.datetime.fromisoformat(text + ("+00:00" if zone in ("Z", "z") else zone))


def to_date(text):
    if len(text) != 10:
        raise ValueError(text)
    return datetime.date.fromisoformat(text)


def to_time(text):
    return datetime.time.fromisoformat(re.sub("[Zz]$", "+00:00", text))


def to_bytes(text):
    return base64.b64decode(text, validate=True)


TYPES = {
    str: Type({"type": "string"}, read_plain(str)),
    bool: Type({"type": "boolean"}, read_plain(bool)),
    int: Type({"type": "integer"}, read_integer),
    float: Type({"type": "number"}, read_number),
    type(None): Type({"type": "null"}, read_plain(type(None))),
    bytes: Type({"type": "string", "contentEncoding": "base64"}, read_text(to_bytes, "base64")),
    datetime.datetime: Type({"type": "string", "format": "date-time"},
                            read_text(to_datetime, "a time such as 2006-01-02T15:04:05Z")),
    datetime.date: Type({"type": "string", "format": "date"}, read_text(to_date, "a date such as 2006-01-02")),
    datetime.time: Type({"type": "string", "format": "time"}, read_text(to_time, "a time of day such as 15:04:05")),
    uuid.UUID: Type({"type": "string", "format": "uuid"}, read_text(uuid.UUID, "a UUID")),
    decimal.Decimal: Type({"type": "string"}, read_text(decimal.Decimal, 'a decimal number such as "12.50"')),
    pathlib.Path: Type({"type": "string"}, read_text(pathlib.Path, "a path")),
    pathlib.PurePath: Type({"type": "string"}, read_text(pathlib.PurePath, "a path")),
}
SEQUENCES = {list: list, set: set, frozenset: frozenset, tuple: tuple, abc.Set: set, abc.MutableSet: set}
SEQUENCES.update({t: list for t in (abc.Sequence, abc.MutableSequence, abc.Iterable, abc.Collection)})
MAPPINGS = (dict, abc.Mapping, abc.MutableMapping)
UNIONS = (typing.Union, getattr(types, "UnionType", typing.Union))


class Field:
    """A parameter of a method, or a field of a class."""

    def __init__(self, name, type_, default, doc):
        self.name, self.type, self.required = name, type_, default is REQUIRED
        # "x: int = None" is the way to say that x may be left out, which is all
        # that a schema needs to know of that None.
        schema = dict(type_.schema if default is None else type_.whole())
        if default is not REQUIRED and default is not None:
            try:
                schema["default"] = json.loads(encode(default))
            except Exception:
                pass  # a default without a JSON form is the function's own affair
        if doc:
            schema["description"] = doc  # it says more of its role than its type can
        self.schema = ordered(schema)


def object_schema(fields):
    schema = {"type": "object", "properties": {f.name: f.schema for f in fields}}
    required = [f.name for f in fields if f.required]
    return {**schema, "required": required} if required else schema


def read_fields(fields, given, path):
    """The values of fields from a JSON object; what is missing is told first."""
    prefix = path + "." if path else ""
    for f in fields:
        if f.required and f.name not in given:
            raise Wrong(prefix + f.name, " is required")
    # A null for what may be left out counts as left out, unless it means something.
    return {f.name: f.type.read(given[f.name], prefix + f.name) for f in fields
            if f.name in given and (f.required or f.type.null or given[f.name] is not None)}


class Types:
    """The types of one method's parameters, and the definitions of those that contain themselves."""

    def __init__(self):
        self.defs, self.readers, self.open, self.recursive, self.parts = {}, {}, [], set(), 0

    def of(self, hint):
        """The Type of an annotation. What is not known allows everything, and arrives as it came."""
        self.parts += 1
        if self.parts > MAX_PARTS:
            return Type({}, anything, null=True)
        try:
            return TYPES[hint]
        except (KeyError, TypeError):  # the latter for what can't be hashed
            pass
        origin, args = typing.get_origin(hint) or hint, typing.get_args(hint)
        if origin is typing.Annotated:
            return self.annotated(hint.__origin__, hint.__metadata__)
        if origin in UNIONS:
            return self.union(args)
        if origin is typing.Literal:
            return self.choice({encode(v): v for v in args})
        if isinstance(origin, type) and issubclass(origin, enum.Enum):
            return self.documented(self.choice({encode(enum_json(m)): m for m in origin}), origin)
        if isinstance(origin, type) and issubclass(origin, dict) and hasattr(origin, "__total__"):
            return self.record(origin, self.typed_dict_fields, dict)
        if isinstance(origin, type) and dataclasses.is_dataclass(origin):
            return self.record(origin, self.dataclass_fields, origin)
        if origin is tuple and args and args[-1] is not Ellipsis:
            return self.fixed_tuple(() if args == ((),) else args)
        if origin in SEQUENCES:
            return self.sequence(args[0] if args else typing.Any, SEQUENCES[origin])
        if origin in MAPPINGS:
            return self.mapping(*(args or (str, typing.Any)))
        for name in ("__supertype__", "__value__", "__bound__"):  # NewType, type X = …, TypeVar
            if getattr(hint, name, None) is not None:
                return self.of(getattr(hint, name))
        return Type({}, anything, null=True)

    def annotated(self, hint, metadata):
        """Annotated[T, "text"]: the text is the description."""
        inner = self.of(hint)
        text = next((m for m in metadata if isinstance(m, str)), None)
        return inner if text is None else Type({**inner.schema, "description": text}, inner.read, inner.null)

    def documented(self, inner, cls):
        doc = class_doc(cls)[0]
        return Type(ordered({**inner.schema, "description": doc}) if doc else inner.schema, inner.read)

    def union(self, args):
        parts = [self.of(a) for a in args if a is not type(None)]
        null = len(parts) < len(args) or any(p.null for p in parts)
        if len(parts) == 1:
            return Type(parts[0].schema, parts[0].read, null)
        schemas = []
        for p in parts:
            if p.schema not in schemas:
                schemas.append(p.schema)
        schema = {"anyOf": schemas}
        if {} in schemas:
            schema = {}
        elif all(list(s) == ["type"] and isinstance(s["type"], str) for s in schemas):
            schema = {"type": [s["type"] for s in schemas]}

        def read(value, path):
            if type(value) in (int, float) and type(value) in args:
                return value  # a 1 for "float | int" is an int
            faults = []
            for part in parts:
                try:
                    return part.read(value, path)
                except Wrong as e:
                    faults.append(e)
            # The part that was read furthest is the one that was meant.
            furthest = max(faults, key=lambda e: len(e.path))
            if furthest.path != path:
                raise furthest
            raise Wrong(path, ": want %s, got %s" % (wanted(schema), kind(value)))
        return Type(schema, read, null)

    def choice(self, members):
        """One of a few values, by their JSON."""
        values = [json.loads(text) for text in members]
        names = list(dict.fromkeys("null" if v is None else KINDS[type(v)] for v in values))
        schema = {"type": names[0] if len(names) == 1 else names, "enum": values}

        def read(value, path):
            if isinstance(value, (list, dict)) or encode(value) not in members:
                got = kind(value) if isinstance(value, (list, dict)) else encode(value)
                raise Wrong(path, ": want %s, got %s" % (wanted(schema), got[:100]))
            return members[encode(value)]
        return Type(schema, read)

    def sequence(self, hint, make):
        item = self.of(hint)

        def read(value, path):
            read_plain(list)(value, path)
            items = [item.read(v, "%s.%d" % (path, i)) for i, v in enumerate(value)]
            try:
                return items if make is list else make(items)
            except TypeError as e:  # a set of what can't be in one
                raise Wrong(path, ": " + str(e)) from None
        return Type({"type": "array", "items": item.whole()}, read)

    def fixed_tuple(self, hints):
        items = [self.of(h) for h in hints]
        size = len(items)

        def read(value, path):
            read_plain(list)(value, path)
            if len(value) != size:
                raise Wrong(path, ": want an array of %d, got one of %d" % (size, len(value)))
            return tuple(t.read(v, "%s.%d" % (path, i)) for i, (t, v) in enumerate(zip(items, value)))
        schema = {"type": "array", "prefixItems": [t.whole() for t in items], "minItems": size, "maxItems": size}
        return Type(schema, read)

    def mapping(self, key_hint, value_hint):
        key, item = self.of(key_hint), self.of(value_hint)
        # The keys of a JSON object are strings, whatever they stand for.
        number = {int: int, float: float}.get(key_hint)

        def read_key(text, path):
            try:
                return number(text) if number else key.read(text, path)
            except ValueError:
                raise Wrong(path, ": want numbers as keys, got %s" % encode(text[:100])) from None

        def read(value, path):
            read_plain(dict)(value, path)
            return {read_key(k, path): item.read(v, path + "." + k) for k, v in value.items()}
        return Type({"type": "object", "additionalProperties": item.whole()}, read)

    def record(self, cls, fields_of, make):
        """A class with fields. One that contains itself is a definition that is referred to; all others are written out."""
        name = cls.__name__
        if any(d.__name__ == name and d is not cls for d in [*self.open, *self.readers]):
            name = cls.__module__ + "." + cls.__qualname__
        ref = Type({"$ref": "#/$defs/" + name}, lambda value, path: self.readers[cls](value, path))
        # Whether it does shows only when it has been written out: it then came up while it was open.
        if cls in self.open:
            self.recursive.add(cls)
            return ref
        if name in self.defs:
            return ref
        self.open.append(cls)
        text, docs = class_doc(cls)
        fields = fields_of(cls, docs)
        self.open.remove(cls)
        schema = object_schema(fields)
        if text:
            schema = ordered({**schema, "description": text})

        def read(value, path):
            read_plain(dict)(value, path)
            values = read_fields(fields, value, path)
            try:
                # A TypedDict is the object as it came; a class takes what it has fields for.
                return {**value, **values} if make is dict else make(**values)
            except Exception as e:  # __post_init__ has the last word
                raise Wrong(path, ": " + message_of(e)) from e
        self.readers[cls] = read
        if cls in self.recursive:
            self.defs[name] = schema
            return ref
        return Type(schema, read)

    def dataclass_fields(self, cls, docs):
        hints, fields = hints_of(cls), []
        for f in dataclasses.fields(cls):
            if not f.init:
                continue
            default = f.default
            if default is dataclasses.MISSING:
                # What a factory makes is new each time, and not told.
                default = REQUIRED if f.default_factory is dataclasses.MISSING else None
            doc = docs.get(f.name) or f.metadata.get("description")
            fields.append(Field(f.name, self.of(hints.get(f.name, typing.Any)), default, doc))
        return fields

    def typed_dict_fields(self, cls, docs):
        fields = []
        for name, hint in hints_of(cls).items():
            # Where annotations are strings, only these two words tell.
            marker = getattr(typing.get_origin(hint), "_name", None)
            required = name in cls.__required_keys__
            if marker in ("Required", "NotRequired"):
                required, hint = marker == "Required", typing.get_args(hint)[0]
            fields.append(Field(name, self.of(hint), REQUIRED if required else None, docs.get(name)))
        return fields


def hints_of(thing):
    """The annotations of a function or class. One that can't be evaluated (a name that is
    imported for type checkers only) is left out, and does not take the others with it."""
    try:
        return typing.get_type_hints(thing, include_extras=True)
    except Exception:
        hints, scope = {}, vars(sys.modules[thing.__module__])
    for name, hint in getattr(thing, "__annotations__", {}).items():
        try:
            one = types.SimpleNamespace(__annotations__={name: hint})
            hints.update(typing.get_type_hints(one, scope, include_extras=True))
        except Exception as e:
            text = "%s: the annotation of %s can't be read, so it may be anything: %s"
            print(text % (thing.__name__, name, e), file=sys.stderr)
    return hints


# ---- Docstrings

SECTION = re.compile(r"(Args|Arguments|Parameters|Keyword Args|Keyword Arguments|Attributes):\s*")
ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?:(?:\s+(.*))?")
FIELD = re.compile(r":(?:param|parameter|arg|argument|key|keyword|ivar|var|cvar)\s+(?:[^:]*\s)?\*{0,2}(\w+):\s*(.*)")


def parse_doc(doc):
    """Takes what is said of parameters, in Google's or in reST's form, out of a docstring:
    the text that is left, and the parameters' texts. Lines that begin with @ stay; they are usher's."""
    text, docs = [], {}
    name = ""  # the parameter that an indented line goes on about
    entries = None  # the indentation of a Google section's entries: -1 before the first, None outside
    for line in inspect.cleandoc(doc or "").splitlines():
        body, indent = line.strip(), len(line) - len(line.lstrip())
        rest = FIELD.fullmatch(body)
        if rest:
            name, entries = rest.group(1), None
            docs[name] = rest.group(2)
        elif re.match(r":type\s+\w+:", body):
            name, entries = "", None
        elif indent == 0 and SECTION.fullmatch(body):
            name, entries = "", -1
        elif entries is not None and indent > 0:
            entry = ENTRY.fullmatch(body) if indent <= entries or entries < 0 else None
            entries = indent if entries < 0 else entries
            if entry:
                name = entry.group(1)
                docs[name] = entry.group(2) or ""
            elif name:
                docs[name] = (docs[name] + " " + body).strip()
        elif body and name and indent > 0:
            docs[name] = (docs[name] + " " + body).strip()
        elif body or entries is None:
            name, entries = "", None
            text.append(line)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(text)).strip(), docs


def class_doc(cls):
    """A class's own description, on one line, and those of its fields."""
    doc = vars(cls).get("__doc__") or ""
    # What dataclasses and Enum put there by themselves says nothing.
    if doc.startswith(cls.__name__ + "(") or doc == "An enumeration.":
        doc = ""
    text, docs = parse_doc(doc)
    return " ".join(text.split()), docs


def first_sentence(doc):
    text = " ".join((doc or "").split())
    m = re.match(r".*?[.!?](?=\s|$)", text)
    return m.group() if m else text


# ---- A method


def signature_of(function):
    try:
        return inspect.signature(function)
    except NameError:  # from 3.14 on, annotations are evaluated only when asked for
        import annotationlib
        return inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)


class Method:
    """A function with its tool definition."""

    def __init__(self, name, function):
        self.name, self.function = name, function
        self.is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
        self.fields, self.positional = [], {}  # the latter: what can't be given by keyword, with its default
        self.rest = None  # the Type of **kwargs
        self.webhook = None  # the default of a parameter for the metadata, in a list; None for no such parameter
        text, docs = parse_doc(function.__doc__)
        hints, kinds = hints_of(inspect.unwrap(function)), Types()
        for p in signature_of(function).parameters.values():
            hint = hints.get(p.name, typing.Any)
            if p.kind is p.VAR_KEYWORD:
                self.rest = kinds.of(hint)
            elif p.kind is not p.VAR_POSITIONAL:
                default = REQUIRED if p.default is p.empty else p.default
                if p.kind is p.POSITIONAL_ONLY:
                    self.positional[p.name] = default
                if p.name == WEBHOOK:
                    self.webhook = [None if default is REQUIRED else default]
                else:
                    self.fields.append(Field(p.name, kinds.of(hint), default, docs.get(p.name)))
        schema = object_schema(self.fields)
        if self.rest and self.rest.schema:
            schema["additionalProperties"] = self.rest.whole()
        if kinds.defs:
            schema["$defs"] = dict(sorted(kinds.defs.items()))
        self.tool = {"name": name, "inputSchema": schema}
        if text:
            self.tool = {"name": name, "description": text, "inputSchema": schema}

    def bind(self, arguments):
        """The call of the function with these arguments, not yet made. Fields that no parameter takes are ignored."""
        if not isinstance(arguments, dict):
            raise Fault(-32602, "arguments: want an object, got " + kind(arguments))
        values = read_fields(self.fields, arguments, "")
        if self.webhook:
            values[WEBHOOK] = arguments.get(WEBHOOK, self.webhook[0])
        first = [values.pop(name, default) for name, default in self.positional.items()]
        if self.rest:
            known = {f.name for f in self.fields}
            for name, value in arguments.items():
                if name not in known and name not in values:
                    values[name] = value if name == WEBHOOK else self.rest.read(value, name)
        return lambda: self.function(*first, **values)


# ---- A call


def is_ask(item):
    """Tells a request to the client from other things that a generator yields."""
    return isinstance(item, dict) and "ask" in item and set(item) <= {"ask", "params"}


class Call:
    """One tools/call under way. It is answered once, whatever the method does."""

    def __init__(self, server, id_, method, make, token):
        self.server, self.id, self.method, self.make, self.token = server, id_, method, make, token
        self.lock = threading.Lock()
        self.ended = False  # answered or cancelled: nothing more is sent
        self.future = None  # of a call on the loop
        self.asked = None  # the future of the last answer that the method waited for

    def start(self):
        self.server.calls[encode(self.id)] = self
        self.server.running.add(self)
        if self.method.is_async:
            self.hop(self.make)
        else:
            threading.Thread(target=self.in_thread, name=self.method.name, daemon=True).start()

    def cancel(self):
        """Drops the answer and all reports. A coroutine is cancelled; a generator is closed when it
        next yields, or where it asks; a thread can't be stopped from outside, so a plain function
        runs to its end."""
        with self.lock:
            self.ended = True
        if self.future:
            self.future.cancel()
        elif self.asked:
            self.asked.cancel()

    def in_thread(self):
        try:
            value = self.make()
            if inspect.isawaitable(value) or inspect.isasyncgen(value):
                return self.hop(lambda: value)  # a decorator hid that the function is async
            if inspect.isgenerator(value):
                value = self.drain(value)
            self.answer(tool_result(value))
        except BaseException as e:  # SystemExit too: it would end the thread without an answer
            self.fail(e)
        self.forget()

    def hop(self, make):
        self.future = asyncio.run_coroutine_threadsafe(self.on_loop(make), self.server.loop)
        self.future.add_done_callback(lambda _: self.forget())  # also of one cancelled before its first step

    async def on_loop(self, make):
        try:
            value = make()
            if inspect.isasyncgen(value):
                value = await self.drain_async(value)
            elif inspect.isawaitable(value):
                value = await value
            self.answer(tool_result(value))
        except BaseException as e:  # SystemExit would end the loop, and with it the process
            self.fail(e)

    def drain(self, generator):
        """What a generator returns, or, if that is None, what it yielded last that was no report and no ask."""
        last, step, value = None, generator.send, None
        while True:
            try:
                item = step(value)
            except StopIteration as stop:
                return last if stop.value is None else stop.value
            if self.ended:
                return generator.close()
            step, value = generator.send, None
            if is_ask(item):
                try:
                    value = self.ask(item).result()
                except concurrent.futures.CancelledError:
                    return generator.close()
                except RuntimeError as e:
                    step, value = generator.throw, e.with_traceback(None)  # the way it came is ours
            elif not self.report(item):
                last = item

    async def drain_async(self, generator):
        last, step, value = None, generator.asend, None
        try:
            while True:
                try:
                    item = await step(value)
                except StopAsyncIteration:
                    return last
                if self.ended:
                    return None
                step, value = generator.asend, None
                if is_ask(item):
                    try:
                        value = await asyncio.wrap_future(self.ask(item))
                    except RuntimeError as e:
                        step, value = generator.athrow, e.with_traceback(None)
                elif not self.report(item):
                    last = item
        finally:
            await generator.aclose()  # it may be cancelled where it asks

    def ask(self, item):
        """Sends the request that a generator yielded. The future gets its answer, or a RuntimeError;
        with the call it is cancelled."""
        asked = concurrent.futures.Future()
        key = "ask-%d" % next(self.server.asked)
        try:
            line = self.request(key, item)
        except Exception as e:
            asked.set_exception(RuntimeError("ask: " + message_of(e)))
            return asked
        with self.lock:
            if self.ended:
                asked.cancel()
                return asked
            self.asked = self.server.asks[key] = asked
            asked.add_done_callback(lambda _: self.server.asks.pop(key, None))
            self.server.send(line)
        return asked

    def request(self, key, item):
        """The line of an ask. Its _meta tells usher which call, and so which client, it belongs to."""
        if not isinstance(item["ask"], str):
            raise TypeError("the method must be a string, not %s" % type(item["ask"]).__name__)
        try:
            params = json.loads(encode(item.get("params", {})))
        except Exception as e:
            raise ValueError("params can't be written as JSON: %s" % message_of(e)) from None
        if not isinstance(params, dict):
            raise TypeError("params must be an object, not %s" % kind(params))
        meta = params.get("_meta", {})
        if not isinstance(meta, dict):
            raise TypeError("params._meta must be an object, not %s" % kind(meta))
        params["_meta"] = {**meta, "usher/call": self.id}
        line = encode({"jsonrpc": "2.0", "id": key, "method": item["ask"], "params": params})
        if len(line.encode("utf-8", "backslashreplace")) > MAX_LINE:
            raise ValueError("the request is longer than %d bytes" % MAX_LINE)
        return line

    def report(self, item):
        """Sends what a generator yielded, if it is progress or a log message; tells whether it was."""
        keys = set(item) if isinstance(item, dict) else set()
        if "progress" in keys and keys <= {"progress", "total", "message"}:
            if self.token is not None:
                params = {key: item[key] for key in ("progress", "total", "message") if item.get(key) is not None}
                self.notify("progress", {"progressToken": self.token, **params})
        elif "log" in keys and keys <= {"log", "level"}:
            level = item.get("level")
            level = level if level in LEVELS else "info"
            if LEVELS.index(level) >= self.server.level:
                self.notify("message", {"level": level, "logger": self.server.name, "data": item["log"], "_meta": {"usher/call": self.id}})
        else:
            return False
        return True

    def notify(self, method, params):
        try:
            line = '{"jsonrpc":"2.0","method":"notifications/%s","params":%s}' % (method, encode(params))
        except (TypeError, ValueError, RecursionError) as e:
            print("%s: a report can't be written as JSON: %s" % (self.method.name, e), file=sys.stderr)
            return
        with self.lock:
            if not self.ended:
                self.server.send(line)

    def fail(self, e):
        if isinstance(e, asyncio.CancelledError) and self.ended:
            return
        stack = e.__traceback__
        while stack and stack.tb_frame.f_code.co_filename == __file__ and stack.tb_next:
            stack = stack.tb_next
        try:
            traceback.print_exception(type(e), e, stack)  # for the log; the caller gets the message alone
        except Exception:
            pass  # a __str__ that raises
        self.answer(failure(message_of(e)))

    def answer(self, result):
        with self.lock:
            if not self.ended:
                self.ended = True
                self.server.respond(self.id, "result", result)

    def forget(self):
        if self.server.calls.get(encode(self.id)) is self:
            del self.server.calls[encode(self.id)]
        self.server.running.discard(self)


# ---- The server


class Server:
    """The protocol. Its messages are read by a thread of their own; the main thread has the loop."""

    def __init__(self, name, doc, methods, loop, out):
        self.name, self.instructions, self.loop, self.out = name, first_sentence(doc), loop, out
        self.methods = {m.name: m for m in methods}
        self.calls = {}  # by request id, as JSON: those that can be cancelled
        self.running = set()  # cancelled ones too, until they have ended
        self.asked = itertools.count(1)  # numbers what is asked of the client
        self.asks = {}  # by the id that was sent: futures of answers to come
        self.level = 0  # log messages below it are not sent
        self.ended = False
        self.writing = threading.Lock()

    def send(self, line):
        # A lone surrogate has no UTF-8; as \udXXX it is what JSON calls it.
        data = memoryview(line.encode("utf-8", "backslashreplace") + b"\n")
        with self.writing:
            try:
                while data:
                    data = data[os.write(self.out, data):]
            except OSError:
                pass  # nobody reads: stdin ends as well

    def respond(self, id_, key, text):
        # The id in front: by it usher fails the call of an answer that is too long.
        self.send('{"jsonrpc":"2.0","id":%s,"%s":%s}' % (encode(id_), key, text))

    def read(self, lines):
        for line in lines:
            if line.strip():
                self.receive(line)
        # Nobody is left to answer. Coroutines and generators may clean up.
        timer = threading.Timer(1.5 * PATIENCE, os._exit, [0])  # threads that a module started may not want to end
        timer.daemon = True
        timer.start()
        asyncio.run_coroutine_threadsafe(self.end(), self.loop)

    async def end(self):
        for call in list(self.running):
            call.cancel()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        deadline = time.monotonic() + PATIENCE
        while (self.running or not all(t.done() for t in tasks)) and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        self.ended = True
        self.loop.stop()

    def run(self, lines):
        """Serves until the end of lines."""
        threading.Thread(target=self.read, args=[lines], name="usher", daemon=True).start()
        while not self.ended:
            try:
                self.loop.run_forever()
            except BaseException:
                pass  # SystemExit in a task that a module started; asyncio logs it

    def receive(self, line):
        """Handles one line, whatever is in it."""
        id_ = None
        try:
            try:
                message = json.loads(line)
            except (ValueError, RecursionError) as e:
                # What Python can't read may still be JSON: nested too deep, a number of 5,000
                # digits. usher writes the id first, so that its request can be answered.
                known = re.match(rb'\{"jsonrpc":"2\.0","id":(\d+|"[^"\\]*")[,}]', line)
                id_ = json.loads(known.group(1)) if known else None
                if self.answered(id_, {"error": {"message": "reading the answer: %s" % e}}):
                    return
                raise Fault(-32602 if known else -32700, "reading a message: %s" % e) from None
            if not isinstance(message, dict):
                raise Fault(-32600, "a message must be an object")
            method, id_ = message.get("method"), message.get("id")
            params = message.get("params", {})
            if method == "notifications/cancelled":
                call = self.calls.get(encode(params.get("requestId"))) if isinstance(params, dict) else None
                if call:
                    call.cancel()
            elif method is None:
                self.answered(id_, message)
            elif id_ is not None:  # else a notification that says nothing to us
                if not isinstance(params, dict):
                    raise Fault(-32602, "params must be an object")
                if method == "tools/call":
                    self.call(id_, params)
                else:
                    self.respond(id_, "result", encode(self.reply(method, params)))
        except Fault as e:
            self.respond(id_, "error", encode(e.body))
        except Exception as e:  # can't start a thread, say
            traceback.print_exc()
            self.respond(id_, "error", encode({"code": -32603, "message": message_of(e)}))

    def answered(self, id_, message):
        """Gives an answer to the ask that waits for it, and tells whether one does."""
        asked = self.asks.get(id_) if isinstance(id_, str) else None
        if asked is None or not asked.set_running_or_notify_cancel():  # from here on it can't be cancelled
            return False
        error = message.get("error")
        if error is not None:
            text = error.get("message") if isinstance(error, dict) else None
            asked.set_exception(RuntimeError(text if isinstance(text, str) and text else "the client refused without a message"))
        elif "result" in message:
            asked.set_result(message["result"])
        else:
            asked.set_exception(RuntimeError("the client's answer has no result"))
        return True

    def reply(self, method, params):
        """The results of requests that call no method."""
        if method == "initialize":
            version = params.get("protocolVersion")
            result = {
                "protocolVersion": version if version in PROTOCOLS else PROTOCOLS[0],
                "capabilities": {"tools": {}, "logging": {}},
                "serverInfo": {"name": self.name, "version": "1"},
            }
            return {**result, "instructions": self.instructions} if self.instructions else result
        if method == "ping":
            return {}
        if method == "tools/list":
            return {"tools": [m.tool for m in self.methods.values()]}
        if method == "logging/setLevel":
            if params.get("level") not in LEVELS:
                raise Fault(-32602, "level: want one of " + ", ".join(LEVELS))
            self.level = LEVELS.index(params["level"])
            return {}
        raise Fault(-32601, "unknown method %s" % encode(method))

    def call(self, id_, params):
        name = params.get("name")
        method = self.methods.get(name) if isinstance(name, str) else None
        if method is None:
            raise Fault(-32602, "unknown tool %s" % encode(name))
        make = method.bind(params.get("arguments", {}))
        meta = params.get("_meta")
        token = meta.get("progressToken") if isinstance(meta, dict) else None
        Call(self, id_, method, make, token).start()


# ---- Loading the file


def take_stdio():
    """Takes the protocol's pipes away before the module's first line runs: from here on what it, or
    a process that it starts, prints goes to the log, and reading finds nothing."""
    lines, out = os.fdopen(os.dup(0), "rb", 1 << 16), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    return lines, out


def defined_functions(body):
    """The names of the functions that statements define, in their order."""
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield statement.name
        elif not isinstance(statement, ast.ClassDef):
            for inner in ("body", "handlers", "orelse", "finalbody"):  # if, try, with
                yield from defined_functions(getattr(statement, inner, []) or [])


def load(path):
    """Runs the file as a module and returns it with its methods."""
    folder, base = os.path.split(path)
    name = base.split(".usher")[0]
    if sys.path and os.path.abspath(sys.path[0]) == os.path.dirname(os.path.abspath(__file__)):
        del sys.path[0]  # ours; neighbours of the module are to be found, ours are not
    sys.path.insert(0, folder)
    sys.argv = [path]
    with open(path, "rb") as f:
        tree = ast.parse(f.read(), path)
    # Its own name, unless that is another module's: a calendar.usher.py may import calendar.
    own = name
    if own in sys.modules or importlib.util.find_spec(own):
        own += "_usher"
    module = importlib.util.module_from_spec(importlib.util.spec_from_file_location(own, path))
    sys.modules[own] = module  # dataclasses, pickle and typing look there
    exec(compile(tree, path, "exec", dont_inherit=True), vars(module))
    functions = {n: getattr(module, n, None) for n in defined_functions(tree.body) if not n.startswith("_")}
    methods = [Method(n, f) for n, f in functions.items() if callable(f) and not isinstance(f, type)]
    return name, module, methods


def explain(e, path):
    """Why a file could not be loaded: the lines of the traceback that lie in the user's own files."""
    folder = os.path.dirname(path)

    def own(file):
        inside = os.path.abspath(file).startswith(os.path.join(folder, ""))
        return inside and "site-packages" not in file and os.path.exists(file)
    places = [(f.filename, f.lineno, f.name) for f in traceback.extract_tb(e.__traceback__) if own(f.filename)]
    text = "%s: %s" % (type(e).__name__, e.msg if isinstance(e, SyntaxError) else e)
    if isinstance(e, SyntaxError) and e.filename and own(e.filename):
        places.append((e.filename, e.lineno, ""))
    lines = ["%s:%s: in %s" % (os.path.relpath(file, folder), line, name) for file, line, name in places[-4:]]
    where = "%s:%s" % (os.path.relpath(places[-1][0], folder), places[-1][1]) if places else os.path.basename(path)
    return "\n".join(lines[:-1] + ["%s: %s" % (where, " ".join(text.split()))])


def main():
    path = os.path.abspath(sys.argv[1])
    lines, out = take_stdio()
    # Before the module: on Python 3.9 an asyncio.Lock at its top level binds to this loop.
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        name, module, methods = load(path)
    except BaseException as e:  # sys.exit at the top level is no start either
        print(explain(e, path), file=sys.stderr)
        sys.stderr.flush()
        os._exit(1)  # whatever threads it has started
    Server(name, module.__doc__, methods, loop, out).run(lines)


if __name__ == "__main__":
    main()
