"""The Python runtime of usher: it serves the functions of one file as MCP tools.

    python3 -B -u shim.py NAME.usher.py

Every public function at the top level of the file is a tool. Its annotations become
the JSON Schema, and its docstring the description. Messages are JSON-RPC over stdin
and stdout, one per line, as in every other runtime of usher.

usher checks the arguments of a call against the schema before it sends them, and
makes the tool result from the returned value. This file converts arguments to Python
values, and results to JSON.

In reading order: writing JSON, reading JSON (types and their schemas), docstrings,
methods, calls, the server, and loading the file. It needs Python 3.9 or newer and
imports only the standard library.
"""

import sys

if sys.version_info < (3, 9):
    sys.exit(f"usher needs Python 3.9 or newer; this is {sys.version.split()[0]}")

import ast
import base64
import collections.abc as abc
import contextvars
import dataclasses
import datetime
import decimal
import enum
import importlib.util
import inspect
import json
import os
import pathlib
import queue
import re
import threading
import time
import traceback
import types
import typing
import uuid

# Seconds that running calls get to clean up once stdin has ended. usher sends TERM
# after one second.
CLEANUP_TIME = 0.6

# The folder of Python's own library.
LIBRARY = os.path.join(os.path.dirname(os.__file__), "")

# The parameter for the metadata of a webhook. usher fills it in; no schema has it.
WEBHOOK = "_webhook"


# ---- Writing JSON


def writer_of(cls):
    """Returns a function that converts the values of a class for JSON, one level deep.

    The json module can't encode them. None if JSON has no form for them.
    """
    if hasattr(cls, "model_dump"):  # pydantic
        return cls.model_dump
    if dataclasses.is_dataclass(cls):
        return lambda v: {f.name: getattr(v, f.name) for f in dataclasses.fields(v)}
    if issubclass(cls, enum.Enum):
        return enum_value
    if issubclass(cls, (datetime.date, datetime.time)):
        return cls.isoformat
    if issubclass(cls, datetime.timedelta):
        return cls.total_seconds
    if issubclass(cls, (pathlib.PurePath, uuid.UUID, decimal.Decimal)):
        return str
    if issubclass(cls, (bytes, bytearray)):
        return lambda v: base64.b64encode(v).decode()
    # arrays and numbers of numpy
    if hasattr(cls, "tolist"):
        return cls.tolist
    # such as sqlite3.Row
    if hasattr(cls, "keys") and hasattr(cls, "__getitem__"):
        return lambda v: {key: v[key] for key in v.keys()}
    return list if issubclass(cls, abc.Collection) else None


def to_json_value(value):
    """Converts a value that the json module can't encode, one level deep."""
    write = writer_of(type(value))
    if not write:
        raise TypeError(f"a value of type {type(value).__name__}")
    return write(value)


def enum_value(member):
    """Returns the value of an Enum member, or its name.

    The name is used if JSON has no form for the values of the class.
    """
    plain = all(type(m.value) in (str, int, float, bool) for m in type(member))
    return member.value if plain else member.name


encode = json.JSONEncoder(
    ensure_ascii=False,
    allow_nan=False,
    separators=(",", ":"),
    default=to_json_value,
).encode


def failure(message):
    """Returns the tool result of a failed call, as JSON."""
    return '{"content":[{"type":"text","text":%s}],"isError":true}' % encode(message)


def result(value):
    """Returns the answer to a call that returned a value, as JSON.

    usher makes the tool result from it. Bytes are written as base64.
    """
    try:
        kind = "bytes" if isinstance(value, (bytes, bytearray)) else "value"
        return '{"_meta":{"usher/%s":%s}}' % (kind, encode(value))
    # NaN, a cycle, an unknown type, a property that raises
    except Exception as e:
        return failure(f"the result can't be written as JSON: {message_of(e)}")


def message_of(e):
    """Returns the message of an exception, for the caller of a method."""
    try:
        text = str(e)
    except Exception:
        text = ""
    # the text is only the key or the status
    if isinstance(e, (KeyError, SystemExit)):
        return f"{type(e).__name__}: {text}"
    return text or type(e).__name__


# ---- Reading JSON: types and their schemas

# the default of a parameter or field that has none
REQUIRED = dataclasses.MISSING


class Type:
    """The JSON Schema of a Python type, and a function that converts JSON to it.

    The schema doesn't mention null; the attribute null says whether null is allowed
    too. convert takes a value that fits the schema. For other values it may raise any
    exception, because a union tries its alternatives in turn.
    """

    def __init__(self, schema, convert, null=False):
        self.schema = schema
        self.null = null
        self.convert = lambda v: None if null and v is None else convert(v)

    def full_schema(self):
        """Returns the schema including null."""
        schema = self.schema
        if not self.null or not schema:
            return schema
        names = schema.get("type")
        if names is None:
            return {"anyOf": schema.get("anyOf", [schema]) + [{"type": "null"}]}
        if isinstance(names, str):
            names = [names]
        if "null" in names:
            return schema
        schema = {**schema, "type": names + ["null"]}
        if "enum" in schema:
            schema["enum"] = schema["enum"] + [None]
        return schema


ANY = Type({}, lambda v: v, null=True)


def only(*kinds):
    """Returns a converter that accepts values of these types unchanged."""

    def convert(value):
        if type(value) not in kinds:
            raise TypeError(f"not a {kinds[0].__name__}")
        return value

    return convert


def parse_iso(cls):
    """Returns a parser of dates or times. Before 3.11, Python doesn't read Z."""
    return lambda text: cls.fromisoformat(re.sub("[Zz]$", "+00:00", text))


def string_type(convert, **keywords):
    """Returns the Type of a value that JSON writes as a string."""
    schema = {"type": "string", **keywords}
    return Type(schema, lambda v: convert(only(str)(v)))


TYPES = {
    str: Type({"type": "string"}, only(str)),
    bool: Type({"type": "boolean"}, only(bool)),
    # In a union such as list[int] | list[float], 1.5 must not become 1.
    int: Type(
        {"type": "integer"},
        lambda v: int(v) if only(int, float)(v) == int(v) else only(int)(v),
    ),
    float: Type({"type": "number"}, lambda v: float(only(float, int)(v))),
    type(None): Type({"type": "null"}, only(type(None))),
    bytes: string_type(
        lambda text: base64.b64decode(text, validate=True), contentEncoding="base64"
    ),
    datetime.datetime: string_type(parse_iso(datetime.datetime), format="date-time"),
    datetime.date: string_type(parse_iso(datetime.date), format="date"),
    datetime.time: string_type(parse_iso(datetime.time), format="time"),
    uuid.UUID: string_type(uuid.UUID, format="uuid"),
    decimal.Decimal: Type(
        {"type": ["number", "string"]}, lambda v: decimal.Decimal(str(v))
    ),
    pathlib.Path: string_type(pathlib.Path),
}

# Annotations for JSON arrays, each with the class of the value that is made.
SEQUENCES = {
    list: list,
    set: set,
    frozenset: frozenset,
    tuple: tuple,
    abc.Set: set,
    abc.MutableSet: set,
    abc.Sequence: list,
    abc.MutableSequence: list,
    abc.Iterable: list,
    abc.Collection: list,
}
MAPPINGS = (dict, abc.Mapping, abc.MutableMapping)
UNIONS = (typing.Union, getattr(types, "UnionType", typing.Union))

# The keywords of JSON Schema for attributes of pydantic's Field and its constraints.
KEYWORDS = dict(
    description="description",
    ge="minimum",
    gt="exclusiveMinimum",
    le="maximum",
    lt="exclusiveMaximum",
)


class Field:
    """A parameter of a method, or a field of a class."""

    def __init__(self, name, type_, default, doc):
        self.name = name
        self.type = type_
        self.required = default is REQUIRED
        # "x: int = None" means that x may be left out. The schema says so by not
        # requiring x, so it doesn't need the null.
        self.schema = dict(type_.schema if default is None else type_.full_schema())
        if doc:
            # more specific than the type's own
            self.schema["description"] = doc
        if default is not REQUIRED and default is not None:
            try:
                self.schema["default"] = json.loads(encode(default))
            except Exception:
                # the default has no JSON form
                pass


def object_schema(fields):
    schema = {"type": "object", "properties": {f.name: f.schema for f in fields}}
    required = [f.name for f in fields if f.required]
    if required:
        schema["required"] = required
    return schema


def convert_fields(fields, given):
    """Returns the values of fields from a JSON object."""
    values = {}
    for f in fields:
        if f.name not in given:
            continue
        if given[f.name] is None and not f.required and not f.type.null:
            # null for an optional field means that it's left out
            continue
        try:
            values[f.name] = f.type.convert(given[f.name])
        except Exception as e:
            raise ValueError(f'parameter "{f.name}": {message_of(e)}') from None
    return values


class TypeBuilder:
    """Builds the Types of one method's parameters.

    defs collects the definitions of classes that contain themselves. place is the
    parameter, for problems.
    """

    place = ""

    def __init__(self):
        self.defs = {}
        self.converters = {}  # by class
        # classes that are being written out
        self.open = []
        # classes that contain themselves
        self.recursive = set()

    def build(self, hint):
        """Returns the Type of an annotation.

        An unknown annotation allows every value, and the method gets it unchanged.
        """
        try:
            return TYPES[hint]
        # TypeError: the annotation isn't hashable
        except (KeyError, TypeError):
            pass
        origin = typing.get_origin(hint) or hint
        args = typing.get_args(hint)
        if origin is typing.Annotated:
            return self.annotated(hint)
        if origin in UNIONS:
            return self.union(args)
        if origin is typing.Literal:
            return self.choice({encode(value): value for value in args})
        if hasattr(origin, "model_json_schema"):
            return self.model(origin)
        if isinstance(origin, enum.EnumMeta):
            members = {encode(enum_value(member)): member for member in origin}
            return self.choice(members, class_doc(origin)[0])
        if hasattr(origin, "__total__"):  # TypedDict
            return self.record(origin, self.typed_dict_fields, dict)
        if isinstance(origin, type) and dataclasses.is_dataclass(origin):
            return self.record(origin, self.dataclass_fields, origin)
        if origin is tuple and args and args[-1] is not Ellipsis:
            # The schema allows each of the types at every position.
            return self.sequence(typing.Union[args], tuple)
        if origin in SEQUENCES:
            return self.sequence(args[0] if args else typing.Any, SEQUENCES[origin])
        if origin in MAPPINGS:
            return self.mapping(*(args or (str, typing.Any)))
        # NewType, "type X = ...", TypeVar
        for name in ("__supertype__", "__value__", "__bound__"):
            if getattr(hint, name, None) is not None:
                return self.build(getattr(hint, name))
        if hint not in (typing.Any, object) and not isinstance(hint, typing.TypeVar):
            unknown = getattr(origin, "__name__", origin)
            problems.append(f"{self.place} accepts any value for the type {unknown}")
        return ANY

    def annotated(self, hint):
        """Returns the Type of Annotated[T, ...], with a text or a Field of pydantic."""
        inner = self.build(hint.__origin__)
        schema = dict(inner.schema)
        for note in hint.__metadata__:
            if isinstance(note, str):
                schema["description"] = note
            for part in [note, *getattr(note, "metadata", [])]:
                for attribute, keyword in KEYWORDS.items():
                    value = getattr(part, attribute, None)
                    if type(value) in (str, int, float):
                        schema[keyword] = value
        return Type(schema, inner.convert, inner.null)

    def model(self, cls):
        """Returns the Type of a class of pydantic, which makes its own schema."""
        schema = dict(cls.model_json_schema())
        self.defs.update(schema.pop("$defs", {}))
        return Type(schema, cls.model_validate)

    def union(self, args):
        parts = [self.build(arg) for arg in args if arg is not type(None)]
        null = len(parts) < len(args) or any(part.null for part in parts)
        if len(parts) == 1:
            return Type(parts[0].schema, parts[0].convert, null)

        schemas = []
        for part in parts:
            if part.schema not in schemas:
                schemas.append(part.schema)
        if {} in schemas:
            schema = {}
        elif all(list(s) == ["type"] and isinstance(s["type"], str) for s in schemas):
            schema = {"type": [s["type"] for s in schemas]}
        else:
            schema = {"anyOf": schemas}

        def convert(value):
            if type(value) in (int, float) and type(value) in args:
                # 1 for "float | int" stays an int
                return value
            for part in parts[:-1]:
                try:
                    return part.convert(value)
                except Exception:
                    # try the next one
                    pass
            return parts[-1].convert(value)

        return Type(schema, convert, null)

    def choice(self, members, doc=""):
        """Returns the Type of a choice of values, given by their JSON texts."""
        values = [json.loads(text) for text in members]
        names = list(dict.fromkeys(TYPES[type(v)].schema["type"] for v in values))
        schema = {"type": names[0] if len(names) == 1 else names, "enum": values}
        if doc:
            schema["description"] = doc
        return Type(schema, lambda value: members[encode(value)])

    def sequence(self, hint, make):
        item = self.build(hint)
        schema = {"type": "array", "items": item.full_schema()}
        return Type(schema, lambda value: make(map(item.convert, only(list)(value))))

    def mapping(self, key_hint, value_hint):
        item = self.build(value_hint)
        # JSON writes every key as a string.
        to_key = key_hint if key_hint in (int, float) else self.build(key_hint).convert

        def convert(value):
            entries = only(dict)(value).items()
            return {to_key(key): item.convert(entry) for key, entry in entries}

        schema = {"type": "object", "additionalProperties": item.full_schema()}
        return Type(schema, convert)

    def record(self, cls, fields_of, make):
        """Returns the Type of a class with fields.

        A class that contains itself becomes a definition, which is referred to. Every
        other class is written out wherever it's used.
        """
        name = cls.__qualname__
        reference = Type(
            {"$ref": "#/$defs/" + name}, lambda value: self.converters[cls](value)
        )
        if cls in self.open:
            self.recursive.add(cls)
            return reference
        if name in self.defs:
            return reference

        self.open.append(cls)
        text, docs = class_doc(cls)
        fields = fields_of(cls, docs)
        self.open.remove(cls)
        schema = object_schema(fields)
        if text:
            schema["description"] = text

        def convert(value):
            values = convert_fields(fields, only(dict)(value))
            # A TypedDict keeps other members too; a class takes only its fields.
            return {**value, **values} if make is dict else make(**values)

        self.converters[cls] = convert
        if cls in self.recursive:
            self.defs[name] = schema
            return reference
        return Type(schema, convert)

    def dataclass_fields(self, cls, docs):
        hints = hints_of(cls)
        fields = []
        for f in dataclasses.fields(cls):
            if not f.init:
                continue
            default = f.default
            if f.default_factory is not dataclasses.MISSING:
                # each call makes a new one, so no schema shows it
                default = None
            type_ = self.build(hints.get(f.name, typing.Any))
            doc = docs.get(f.name) or f.metadata.get("description")
            fields.append(Field(f.name, type_, default, doc))
        return fields

    def typed_dict_fields(self, cls, docs):
        fields = []
        for name, hint in hints_of(cls).items():
            required = name in cls.__required_keys__
            # __required_keys__ ignores these markers if annotations are strings.
            marker = getattr(typing.get_origin(hint), "_name", None)
            if marker in ("Required", "NotRequired"):
                required = marker == "Required"
                hint = typing.get_args(hint)[0]
            default = REQUIRED if required else None
            fields.append(Field(name, self.build(hint), default, docs.get(name)))
        return fields


# with the module's functions, for their author
problems = []


def hints_of(thing):
    """Returns the annotations of a function or class, by name.

    It leaves out each annotation that can't be evaluated, such as a name that is
    imported only for type checkers.
    """
    try:
        return typing.get_type_hints(thing, include_extras=True)
    except Exception:
        pass
    hints = {}
    scope = vars(sys.modules[thing.__module__])
    for name, hint in getattr(thing, "__annotations__", {}).items():
        if name == "return":
            continue
        try:
            single = types.SimpleNamespace(__annotations__={name: hint})
            hints.update(typing.get_type_hints(single, scope, include_extras=True))
        except Exception as e:
            problem = f"{name} may be anything, because its annotation is invalid"
            problems.append(f"{thing.__name__}: {problem}: {e}")
    return hints


def log(text):
    """Writes a record to usher's log. usher turns each \\v into a new line."""
    print(text.replace("\n", "\v"), file=sys.stderr)


def trace_of(e):
    """Returns the traceback of an exception, without the frames of this file."""
    lines = traceback.format_exception(type(e), e, e.__traceback__, limit=-20)
    own = rf'  File "{re.escape(__file__)}", .*\n(    .*\n)*'
    return re.sub(own, "", "".join(lines)).rstrip()


# ---- Docstrings

SECTION = re.compile(r"((Keyword |Other )?(Arg(ument)?|Param(eter)?)s|Attributes):\s*")
ENTRY = re.compile(r"(\*{0,2}\w+(?:,\s*\*{0,2}\w+)*)\s*(?:\([^)]*\))?:(?:\s+(.*))?")
# A parameter in reST's form, or a field that is left out.
FIELD = re.compile(
    r":(?:param(?:eter)?|arg(?:ument)?|key(?:word)?|[ic]?var)\s+"
    r"(?:[^:]*\s)?(\*{0,2}\w+):\s*(.*)"
    r"|:(?:(?:raises?|type) [^:]+|rtype|platform|synopsis):.*"
)
NUMPY = re.compile(
    r"(?m)^(Returns|Yields|Other Parameters|Parameters|Attributes)\n-{3,}\n"
    r"((?:(?!.*\n-{3}|@).*\n)*)"
)


def to_google(match):
    """Rewrites a section of a docstring from NumPy's form to Google's."""
    title, body = match.groups()
    if title in ("Returns", "Yields"):
        text = re.findall(r"(?m)^[ \t]+(.*)", body) or [body]
        return f"@returns {' '.join(text).strip()}\n\n"
    return title + ":\n" + re.sub(r"(?m)^(\w[^:\n]*?|\*.*?) *(:.*)?$", r" \1:", body)


def parse_doc(doc):
    """Splits a docstring into its text and the descriptions of parameters.

    Parameters are described in Google's form ("Args:"), in NumPy's or in reST's
    (":param x:"). Lines that begin with @ stay in the text: they are usher's tags.
    """
    text = []
    docs = {}
    # the parameter that an indented line continues, "" for none of them
    name = None
    # The indentation of entries in a section of Google's form: None outside of one,
    # -1 before the first entry.
    entries = None
    for line in NUMPY.sub(to_google, inspect.cleandoc(doc or "") + "\n").splitlines():
        body = re.sub(r"^:returns?:", "@returns", line.strip())
        indent = len(line) - len(line.lstrip())
        field = FIELD.fullmatch(body)
        if body.startswith("@"):
            name = entries = None
            text.append(body)
        elif field:
            name = field[1] or ""
            docs[name] = field[2] or ""
            entries = None
        elif indent == 0 and SECTION.fullmatch(body):
            name = None
            entries = -1
        elif entries is not None and indent > 0:
            entry = None
            if entries < 0 or indent <= entries:
                entry = ENTRY.fullmatch(body)
            if entries < 0:
                entries = indent
            if entry:
                name = entry[1]
                docs[name] = entry[2] or ""
            elif name:
                docs[name] += " " + body
        elif body and name is not None and indent > 0:
            docs[name] += " " + body
        elif body or entries is None:
            name = entries = None
            text.append(line)
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(text)).strip()
    return text, {n: docs[key].strip() for key in docs for n in re.findall(r"\w+", key)}


def class_doc(cls):
    """Returns the description of a class, on one line, and those of its fields."""
    doc = vars(cls).get("__doc__") or ""
    # Python itself wrote these for a dataclass and for an Enum.
    if doc.startswith(cls.__name__ + "(") or doc == "An enumeration.":
        doc = ""
    text, docs = parse_doc(doc)
    return " ".join(text.split()), docs


# ---- Methods


def signature_of(function):
    try:
        return inspect.signature(function)
    # Python 3.14 and newer evaluate annotations on demand
    except NameError:
        import annotationlib

        return inspect.signature(
            function, annotation_format=annotationlib.Format.FORWARDREF
        )


class Method:
    """A function and its tool definition."""

    def __init__(self, name, function):
        self.name = name
        self.function = function
        self.signature = signature_of(function)
        self.is_async = (
            inspect.iscoroutinefunction(function)
            or inspect.isasyncgenfunction(function)
        )
        self.fields = []
        # the name of **kwargs, whose Type is rest_type
        self.rest = None

        plain = inspect.unwrap(function)
        # Tags of usher count in a comment above the function too.
        tags = re.findall(r"(?m)^# *(@.*\n)", inspect.getcomments(plain) or "")
        doc = inspect.getdoc(function) or ""
        text, docs = parse_doc("\n".join([doc, *tags]))
        hints = hints_of(plain)
        builder = TypeBuilder()
        for p in self.signature.parameters.values():
            hint = hints.get(p.name, typing.Any)
            default = REQUIRED if p.default is p.empty else p.default
            if p.kind is p.VAR_POSITIONAL:
                hint = typing.List[hint]
                default = None
            builder.place = f"{name}: {p.name}"
            type_ = builder.build(hint)
            if p.kind is p.VAR_KEYWORD:
                self.rest = p.name
                self.rest_type = type_
            elif p.name != WEBHOOK:
                field = Field(p.name, type_, default, docs.get(p.name))
                self.fields.append(field)

        result = hints.get("return")
        # A class with a metaclass may be abstract.
        if type(result) is type and result not in (*TYPES, object) and not writer_of(result):
            problems.append(f"{name}: JSON may have no form for its result {result.__name__}")
        schema = object_schema(self.fields)
        if self.rest:
            schema["additionalProperties"] = self.rest_type.full_schema() or True
        if builder.defs:
            schema["$defs"] = dict(sorted(builder.defs.items()))
        self.tool = {"name": name, "description": text, "inputSchema": schema}

    def call(self, arguments):
        """Calls the function. It ignores arguments that no parameter takes."""
        values = convert_fields(self.fields, arguments)
        webhook = self.signature.parameters.get(WEBHOOK)
        if webhook and (WEBHOOK in arguments or webhook.default is webhook.empty):
            values[WEBHOOK] = arguments.get(WEBHOOK)
        if self.rest:
            convert = self.rest_type.convert
            values[self.rest] = {
                key: value if key == WEBHOOK else convert(value)
                for key, value in arguments.items()
                if key not in values
            }
        bound = inspect.BoundArguments(self.signature, values)
        bound.apply_defaults()
        return self.function(*bound.args, **bound.kwargs)


# ---- Calls


# The keys of what generators yield.
KNOWN_YIELDS = (
    "ask and params, progress and total and message, or log and level; "
    "return the result (an asynchronous generator yields it once)"
)


class Call:
    """One tools/call in progress. It is answered once, whatever the method does."""

    def __init__(self, server, id_, method, params):
        self.server = server
        self.id = id_
        self.method = method
        self.arguments = params.get("arguments", {})
        self.token = params.get("_meta", {}).get("progressToken")
        self.lock = threading.Lock()
        # Answered or cancelled. From then on, nothing is sent for the call except
        # that it has ended, if usher cancelled it.
        self.ended = False
        self.cancelled = False  # by usher
        # the event loop, if the call runs on it
        self.loop = None
        self.task = None  # on the loop
        # The future of the client's latest answer.
        self.asked = None
        # The value that an asynchronous generator yielded as its result.
        self.yielded = None

    def start(self):
        self.server.calls[self.id] = self
        if self.method.is_async:
            self.run_on_loop(self.invoke)
            return
        self.server.jobs.put(self.run_in_thread)
        if not self.server.idle.acquire(blocking=False):
            threading.Thread(target=self.server.work, daemon=True).start()

    def invoke(self):
        return self.method.call(self.arguments)

    def cancel(self, by_usher=False):
        """Ends the call; its answer and its reports are dropped.

        A coroutine is cancelled. A generator is closed when it next yields, or while
        it waits for the client. A plain function runs to its end, because a thread
        can't be stopped from outside.
        """
        with self.lock:
            self.ended = True
            self.cancelled = by_usher
            if self.loop:
                self.loop.call_soon_threadsafe(self.stop)
                return
        self.stop()

    def stop(self):
        """Stops the call, on the thread that begins such calls.

        If usher cancelled the call, this tells usher that the thread is not blocked.
        """
        task = self.task or self.asked
        if task:
            task.cancel()
        if self.cancelled:
            params = {"requestId": self.id}
            self.server.write({"method": "usher/cancelled", "params": params})

    def finish(self):
        """Removes the call.

        If usher cancelled it, usher counts it as running until it gets an answer.
        """
        if self.server.calls.pop(self.id, self).cancelled:
            self.server.respond(self.id, "result", "{}")

    def run_in_thread(self):
        try:
            value = self.invoke()
            if inspect.isawaitable(value) or inspect.isasyncgen(value):
                # A decorator hid that the function is asynchronous.
                return self.run_on_loop(lambda: value)
            if inspect.isgenerator(value):
                value = self.drain(value)
            self.answer(result(value))
        # SystemExit would end the thread without an answer
        except BaseException as e:
            self.fail(e)
        self.finish()

    def run_on_loop(self, invoke):
        loop = self.server.running_loop()
        with self.lock:
            self.loop = loop
            loop.call_soon_threadsafe(self.start_task, invoke)

    def start_task(self, invoke):
        self.task = self.loop.create_task(self.run_async(invoke))
        # A callback also runs if the call is cancelled before its first step.
        self.task.add_done_callback(lambda _: self.finish())
        # before it was on the loop
        if self.ended:
            self.task.cancel()

    async def run_async(self, invoke):
        try:
            value = invoke()
            if inspect.isasyncgen(value):
                value = await self.drain_async(value)
            elif inspect.isawaitable(value):
                value = await value
            self.answer(result(value))
        # SystemExit would end the loop and the process
        except BaseException as e:
            if not (self.ended and isinstance(e, asyncio.CancelledError)):
                self.fail(e)

    def drain(self, generator):
        """Runs a generator to its end and returns its result.

        What it yields are reports, and requests to the client.
        """
        step, value = generator.send, None
        while True:
            try:
                item = step(value)
            except StopIteration as stop:
                return stop.value
            if self.ended:
                return generator.close()
            step, value = generator.send, None
            try:
                asked = self.take(item)
                value = asked and asked.result()
            except Exception as e:
                if self.ended:
                    return generator.close()
                step, value = generator.throw, e.with_traceback(None)

    async def drain_async(self, generator):
        """Does for an asynchronous generator what drain does.

        Such a generator can't return a value, so it yields its result, once.
        """
        step, value = generator.asend, None
        try:
            while True:
                try:
                    item = await step(value)
                except StopAsyncIteration:
                    return self.yielded
                if self.ended:
                    return None
                step, value = generator.asend, None
                try:
                    asked = self.take(item)
                    value = asked and await asyncio.wrap_future(asked)
                except Exception as e:
                    step, value = generator.athrow, e.with_traceback(None)
        finally:
            # also if the call is cancelled while it asks
            await generator.aclose()

    def take(self, item):
        """Handles what a generator yielded.

        It returns the future of the client's answer if the item asks the client.
        """
        keys = set(item) if isinstance(item, dict) else set()
        if "ask" in keys and keys <= {"ask", "params"}:
            return self.ask(item)
        if "progress" in keys and keys <= {"progress", "total", "message"}:
            if self.token is not None:
                given = {key: value for key, value in item.items() if value is not None}
                self.notify("progress", {"progressToken": self.token, **given})
        elif "log" in keys and keys <= {"log", "level"}:
            params = {
                "level": item.get("level", "info"),
                "logger": self.server.name,
                "data": item["log"],
                "_meta": {"usher/call": self.id},
            }
            self.notify("message", params)
        elif self.loop and self.yielded is None:
            self.yielded = item
        else:
            given = ", ".join(map(str, item)) if keys else type(item).__name__
            raise RuntimeError(f"unknown yield of {given}: want {KNOWN_YIELDS}")
        return None

    def ask(self, item):
        """Sends a request to the client and returns the future of the answer.

        The future raises RuntimeError for an error, and is cancelled with the call.
        """
        # importing it is slow
        from concurrent.futures import Future

        asked = Future()
        key = f"ask-{id(asked)}"
        try:
            params = json.loads(encode(item.get("params", {})))
            # It tells usher which call, and so which client, the request belongs to.
            params["_meta"] = {**params.get("_meta", {}), "usher/call": self.id}
        except Exception as e:
            problem = "ask: params must be an object that can be written as JSON"
            raise RuntimeError(f"{problem}: {message_of(e)}") from None
        with self.lock:
            if self.ended:
                asked.cancel()
                return asked
            self.asked = self.server.asks[key] = asked
            asked.add_done_callback(lambda _: self.server.asks.pop(key, None))
            self.server.write({"id": key, "method": str(item["ask"]), "params": params})
        return asked

    def notify(self, method, params):
        try:
            with self.lock:
                if not self.ended:
                    method = "notifications/" + method
                    self.server.write({"method": method, "params": params})
        except Exception as e:
            log(f"{self.method.name}: a report can't be written as JSON: {e}")

    def fail(self, e):
        """Logs the exception with its stack, and answers with its message."""
        log(trace_of(e))
        self.answer(failure(message_of(e)))

    def answer(self, result):
        with self.lock:
            if not self.ended:
                self.ended = True
                self.server.respond(self.id, "result", result)


# ---- The server


def new_loop():
    """Imports asyncio, which takes a third of a start, and returns an event loop."""
    global asyncio
    import asyncio

    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    return loop


class Server:
    """The protocol. A thread reads messages; the main thread runs the event loop."""

    def __init__(self, name, doc, methods, loop, out):
        self.name = name
        self.doc = doc
        self.methods = {method.name: method for method in methods}
        self.loop = loop
        # Set when there is a loop to run, or nothing more to do.
        self.wake = threading.Event()
        # a file descriptor
        self.out = out
        # By request id, until they end. Cancelled calls are included.
        self.calls = {}
        # Futures of the client's answers, by the id of the request.
        self.asks = {}
        self.ended = False
        self.writing = threading.Lock()
        # The files of modules that usher knows of, and the number of modules then.
        self.reported = {os.path.abspath(__file__), sys.argv[0]}
        self.modules_seen = 0
        # Jobs for threads that run calls, and the number of threads that wait for one.
        self.jobs = queue.SimpleQueue()
        self.idle = threading.Semaphore(0)

    def work(self):
        """Runs one call after another. Most calls take less time than a new thread."""
        while True:
            contextvars.Context().run(self.jobs.get())
            self.idle.release()

    def send(self, line):
        # UTF-8 can't write a lone surrogate; JSON writes it as \udXXX.
        data = memoryview(line.encode("utf-8", "backslashreplace") + b"\n")
        with self.writing:
            try:
                while data:
                    data = data[os.write(self.out, data) :]
            except OSError:
                # usher is gone, so stdin ends too
                pass

    def report_parts(self):
        """Tells usher which files the module has loaded since the last report."""
        if len(sys.modules) == self.modules_seen:
            return
        self.modules_seen = len(sys.modules)
        found = set()
        for module in list(sys.modules.values()):
            file = getattr(module, "__dict__", {}).get("__file__")
            if isinstance(file, str) and not file.startswith(LIBRARY):
                found.add(os.path.abspath(file))
        paths = sorted(found - self.reported)
        self.reported |= found
        if paths:
            self.write({"method": "usher/parts", "params": {"paths": paths}})

    def respond(self, id_, member, text):
        self.report_parts()
        # The id comes first, so that usher can read it if the answer is too long.
        self.send('{"jsonrpc":"2.0","id":%s,"%s":%s}' % (encode(id_), member, text))

    def write(self, message):
        self.send(encode({"jsonrpc": "2.0", **message}))

    def read(self, lines):
        for line in lines:
            self.receive(line)
        self.end()

    def end(self):
        """Ends the calls, after coroutines and generators have cleaned up."""
        for call in list(self.calls.values()):
            call.cancel()
        tasks = asyncio.all_tasks(self.loop) if self.loop else ()
        for task in tasks:
            self.loop.call_soon_threadsafe(task.cancel)
        deadline = time.monotonic() + CLEANUP_TIME
        while self.calls or not all(task.done() for task in tasks):
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)
        self.ended = True
        self.wake.set()
        if self.loop:
            self.loop.call_soon_threadsafe(self.loop.stop)

    def running_loop(self):
        """Returns the event loop, which begins with the first asynchronous call."""
        with self.writing:
            self.loop = self.loop or new_loop()
        self.wake.set()
        return self.loop

    def run(self, lines):
        """Serves until lines ends."""
        threading.Thread(target=self.read, args=[lines], daemon=True).start()
        if not self.loop:
            self.wake.wait()
        while not self.ended:
            try:
                self.loop.run_forever()
            except BaseException:
                # SystemExit in a task that a module started; asyncio logs it
                pass

    def receive(self, line):
        """Handles one line from usher."""
        try:
            message = json.loads(line)
        except (ValueError, RecursionError) as e:
            self.refuse(line, e)
            return
        id_ = message.get("id")
        method = message.get("method")
        params = message.get("params", {})
        if method is None:
            self.take_answer(id_, message)
        elif method == "notifications/cancelled":
            call = self.calls.get(params.get("requestId"))
            if call:
                call.cancel(by_usher=True)
        elif method == "tools/call" and params.get("name") in self.methods:
            Call(self, id_, self.methods[params["name"]], params).start()
        # other notifications need no reaction
        elif id_ is not None:
            answer = self.reply(method, params)
            if answer is None:
                message = f"unknown method or tool in {method}"
                error = {"code": -32601, "message": message}
                self.respond(id_, "error", encode(error))
            else:
                self.respond(id_, "result", encode(answer))

    def refuse(self, line, e):
        """Answers a message that is valid JSON, but which Python can't read.

        It may be nested too deeply, or contain a number with 5,000 digits.
        """
        prefix = re.match(rb'\{"jsonrpc":"2\.0","id":(\d+|"[^"\\]*")', line)
        # usher writes the id first
        id_ = json.loads(prefix.group(1))
        error = {"error": {"message": f"reading the answer: {e}"}}
        if not self.take_answer(id_, error):
            self.respond(id_, "result", failure(f"reading the arguments: {e}"))

    def take_answer(self, id_, message):
        """Gives an answer of the client to the call that asked.

        It reports whether a call was waiting for it.
        """
        asked = self.asks.get(id_)
        # From here on, the future can't be cancelled.
        if asked is None or not asked.set_running_or_notify_cancel():
            return False
        if "error" in message:
            asked.set_exception(RuntimeError(message["error"]["message"]))
        else:
            asked.set_result(message.get("result"))
        return True

    def reply(self, method, params):
        """Returns the result of a request that calls no method, None if unknown."""
        if method == "initialize":
            return {
                "protocolVersion": params.get("protocolVersion"),
                "capabilities": {
                    "tools": {},
                    "experimental": {"usher/problems": {"problems": problems}},
                },
                "serverInfo": {"name": self.name, "version": "1"},
                # usher uses the first sentence.
                "instructions": parse_doc(self.doc)[0],
            }
        if method == "tools/list":
            return {"tools": [method.tool for method in self.methods.values()]}
        return None


# ---- Loading the file


def take_stdio():
    """Takes the protocol's pipes away before the module runs.

    It returns them. From then on, what the module or one of its child processes
    prints goes to usher's log, and reading from stdin finds nothing.
    """
    lines = os.fdopen(os.dup(0), "rb", 1 << 16)
    out = os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(
            encoding="utf-8", errors="backslashreplace", line_buffering=True
        )
    return lines, out


def defined_functions(body):
    """Yields the names of the functions that statements define, in their order."""
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield statement.name
        elif not isinstance(statement, ast.ClassDef):
            for block in ("body", "handlers", "orelse", "finalbody"):  # if, try, with
                yield from defined_functions(getattr(statement, block, []) or [])


def load(path, text):
    """Runs the text as the module at path. Returns its name, itself and its methods."""
    folder, base = os.path.split(path)
    name = base.split(".usher")[0]
    # a module imports its own neighbors, not those of this file
    sys.path[0] = folder
    sys.argv = [path]
    tree = ast.parse(text, path)
    # A file calendar.usher.py may still import calendar from the standard library.
    own_name = name + "_usher"
    spec = importlib.util.spec_from_file_location(own_name, path)
    module = importlib.util.module_from_spec(spec)
    # dataclasses, pickle and typing look there
    sys.modules[own_name] = module
    exec(compile(tree, path, "exec", dont_inherit=True), vars(module))
    functions = dict.fromkeys(defined_functions(tree.body))
    public = getattr(module, "__all__", functions)
    methods = []
    for function_name in functions:
        function = getattr(module, function_name, None)
        if function_name.startswith("_") or function_name not in public or function is None:
            continue
        kind = type(function).__name__
        reason = f"a value of type {kind} has replaced it (a decorator needs functools.wraps)"
        try:
            # Another function lacks the tags of this one, and one of them may protect it.
            code = getattr(inspect.unwrap(function), "__code__", None)
            nested = code and code.co_flags & inspect.CO_NESTED
            if code and (path, function_name, 0) == (code.co_filename, code.co_name, nested):
                methods.append(Method(function_name, function))
                continue
        # such as an annotation that can't be read
        except Exception as e:
            reason = message_of(e)
        problems.append(f"{function_name} is not offered: {reason}")
    for statement in tree.body:
        if isinstance(statement, ast.ClassDef) and not functions:
            remedy = "write its methods as functions at the top level"
            problems.append(f"{statement.name} is not offered: {remedy}")
    return name, module, methods


def explain(e, path):
    """Returns why a file could not be loaded, on one line.

    The line begins with the last place in the user's own files that led to it.
    """
    places = [(f.filename, f.lineno) for f in traceback.extract_tb(e.__traceback__)]
    reason = e
    if isinstance(e, SyntaxError):
        places.append((e.filename or "", e.lineno))
        reason = e.msg
    folder = os.path.join(os.path.dirname(path), "")
    where = os.path.basename(path)
    for file, line in places:
        own = os.path.abspath(file).startswith(folder) and "site-packages" not in file
        if own and os.path.exists(file):
            where = f"{os.path.relpath(file, folder)}:{line}"
    text = f"{type(e).__name__}: {reason}"
    # its packages may belong to another Python
    if isinstance(e, ImportError):
        where = f"run by {sys.executable}: {where}"
    if isinstance(e, ModuleNotFoundError):
        text += ": install it into a .venv"
    elif isinstance(e, SystemExit):
        text += ': to run as a script only, check __name__ == "__main__"'
    elif "no known parent package" in text:
        text += ": a module is in no package: write import NAME"
    return f"{where}: {' '.join(text.split())}"


def fail(text):
    """Ends the process, even if the module has started threads."""
    log(text)
    sys.stderr.flush()
    os._exit(1)


# A file that makes an MCP server of its own.
SERVER = re.compile(
    rb"(?ms)^\s*(from|import) (fastmcp|mcp\.server)\b.*\b(FastMCP|MCPServer|Server)([.(]| as )"
)


def main():
    path = os.path.abspath(sys.argv[1])
    lines, out = take_stdio()
    text = pathlib.Path(path).read_bytes()
    if SERVER.search(text):
        name = os.path.basename(path)
        entry = '{"command": "python3", "args": ["%s"]}' % name.replace(".usher", "")
        fail(f"{name}: it is an MCP server: rename it, and host it by a .mcp.json: {entry}")
    # The top level of a module may use the loop. On Python 3.9, a Lock binds to it.
    loop = new_loop() if b"asyncio" in text else None
    try:
        name, module, methods = load(path, text)
    # including sys.exit at the top level
    except BaseException as e:
        fail(explain(e, path))
    Server(name, module.__doc__, methods, loop, out).run(lines)


if __name__ == "__main__":
    main()
