# Serves one Python file as an MCP server, for usher.
#
#     python3 -B -u shim.py NAME.usher.py [SIZE]
#
# With a size, stdin begins with the file's text, of so many bytes: the file itself
# may hold another one by now.
#
# Every public function at the top level of the file is a tool: its annotations
# become the JSON Schema, its docstring the description. JSON-RPC goes over stdin
# and stdout, one message a line, as in every other runtime of usher.
#
# usher has checked the arguments of a call against that schema, and makes the
# tool's result of what the function returns; here values become Python's own, and
# JSON again.
#
# In reading order: what is written, what is read (types and their schemas),
# docstrings, a method, a call, the server, and how a file is loaded.
# Python 3.9 and newer, the standard library only.

import sys

if sys.version_info < (3, 9):
    sys.exit("usher needs Python 3.9 or newer; this is %s" % sys.version.split()[0])

import ast
import asyncio
import base64
import collections.abc as abc
import concurrent.futures
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
import traceback
import types
import typing
import uuid

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
PATIENCE = 0.6  # seconds that calls have to end once stdin has; usher sends TERM after 1
WEBHOOK = "_webhook"  # a webhook's metadata: filled in by usher, in no schema


# ---- What is written


# The JSON form of what json itself does not know, one level deep.
def jsonable(value):
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
    if hasattr(value, "tolist"):  # numpy's arrays and numbers
        return value.tolist()
    if hasattr(value, "keys") and hasattr(value, "__getitem__"):  # any mapping, a sqlite3.Row
        return {key: value[key] for key in value.keys()}
    if isinstance(value, abc.Collection):
        return list(value)
    raise TypeError("a value of type %s" % type(value).__name__)


# An Enum member: its value, or its name where the values of its class are not all JSON's own.
def enum_json(member):
    plain = all(type(m.value) in (str, int, float, bool) for m in type(member))
    return member.value if plain else member.name


encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=jsonable).encode


# The tool result of a call that failed, as JSON.
def failure(message):
    return '{"content":[{"type":"text","text":%s}],"isError":true}' % encode(message)


# What answers a call that returned a value: usher makes the tool result of it.
def result(value):
    try:
        return '{"_meta":{"usher/value":%s}}' % encode(value)
    except Exception as e:  # NaN, a cycle, a type without a JSON form, or a property that raises
        return failure("the result can't be written as JSON: %s" % message_of(e))


# What an exception says, for who called.
def message_of(e):
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
# that makes a value of it from JSON that fits the schema. Of a value that does
# not fit, which alternatives of a union may meet, the function raises something.

KINDS = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
REQUIRED = object()  # in the place of a default


# A schema without its null, whether null is allowed too, and convert(value).
class Type:
    def __init__(self, schema, convert, null=False):
        self.schema, self.null = schema, null
        self.convert = (lambda value: None if value is None else convert(value)) if null else convert

    # The schema with its null.
    def whole(self):
        if not self.null or not self.schema:
            return self.schema
        names = self.schema.get("type")
        if names is None:
            return {"anyOf": self.schema.get("anyOf", [self.schema]) + [{"type": "null"}]}
        names = [names] if isinstance(names, str) else names
        more = {"enum": self.schema["enum"] + [None]} if "enum" in self.schema else {}
        return self.schema if "null" in names else {**self.schema, "type": names + ["null"], **more}


ANY = Type({}, lambda value: value, null=True)


# A function that takes values of some kinds as they are.
def only(*kinds):
    def convert(value):
        if type(value) not in kinds:
            raise TypeError("not a " + kinds[0].__name__)
        return value
    return convert


def to_datetime(text):
    # Python before 3.11 reads neither Z nor a fraction that is not of 3 or 6 digits.
    start, fraction, zone = re.fullmatch(r"(.{19})(\.\d+)?(.*)", text).groups("")
    return datetime.datetime.fromisoformat(start + "." + fraction[1:7].ljust(6, "0") + re.sub("^[Zz]$", "+00:00", zone))


def to_time(text):
    return datetime.time.fromisoformat(re.sub("[Zz]$", "+00:00", text))


# The Type of what is written as a string.
def text_type(convert, **more):
    return Type({"type": "string", **more}, lambda value: convert(only(str)(value)))


TYPES = {
    str: Type({"type": "string"}, only(str)),
    bool: Type({"type": "boolean"}, only(bool)),
    int: Type({"type": "integer"}, lambda value: int(only(int, float)(value))),
    float: Type({"type": "number"}, lambda value: float(only(float, int)(value))),
    type(None): Type({"type": "null"}, only(type(None))),
    bytes: text_type(base64.b64decode, contentEncoding="base64"),
    datetime.datetime: text_type(to_datetime, format="date-time"),
    datetime.date: text_type(datetime.date.fromisoformat, format="date"),
    datetime.time: text_type(to_time, format="time"),
    uuid.UUID: text_type(uuid.UUID, format="uuid"),
    decimal.Decimal: text_type(decimal.Decimal),
    pathlib.Path: text_type(pathlib.Path),
}
SEQUENCES = {list: list, set: set, frozenset: frozenset, tuple: tuple, abc.Set: set, abc.MutableSet: set}
SEQUENCES.update({t: list for t in (abc.Sequence, abc.MutableSequence, abc.Iterable, abc.Collection)})
MAPPINGS = (dict, abc.Mapping, abc.MutableMapping)
UNIONS = (typing.Union, getattr(types, "UnionType", typing.Union))


# A parameter of a method, or a field of a class.
class Field:
    def __init__(self, name, type_, default, doc):
        self.name, self.type, self.required = name, type_, default is REQUIRED
        # "x: int = None" is the way to say that x may be left out, which is all
        # that a schema needs to know of that None.
        self.schema = dict(type_.schema if default is None else type_.whole())
        if doc:
            self.schema["description"] = doc  # it says more of its role than its type can
        if default is not REQUIRED and default is not None:
            try:
                self.schema["default"] = json.loads(encode(default))
            except Exception:
                pass  # a default without a JSON form is the function's own affair


def object_schema(fields):
    schema = {"type": "object", "properties": {f.name: f.schema for f in fields}}
    required = [f.name for f in fields if f.required]
    return {**schema, "required": required} if required else schema


# The values of fields from a JSON object.
def convert_fields(fields, given):
    values = {}
    for f in fields:
        # A null for what may be left out counts as left out, unless it means something.
        if f.name in given and (f.required or f.type.null or given[f.name] is not None):
            try:
                values[f.name] = f.type.convert(given[f.name])
            except Exception as e:
                raise ValueError('parameter "%s": %s' % (f.name, message_of(e))) from e
    return values


# The types of one method's parameters, and the definitions of those that contain themselves.
class Types:
    def __init__(self):
        self.defs, self.records, self.open, self.recursive = {}, {}, [], set()

    # The Type of an annotation. What is not known allows everything, and arrives as it came.
    def of(self, hint):
        try:
            return TYPES[hint]
        except (KeyError, TypeError):  # the latter for what can't be hashed
            pass
        origin, args = typing.get_origin(hint) or hint, typing.get_args(hint)
        if origin is typing.Annotated:  # Annotated[T, "text"]: the text is the description
            inner, text = self.of(hint.__origin__), next((m for m in hint.__metadata__ if isinstance(m, str)), "")
            return Type({**inner.schema, "description": text}, inner.convert, inner.null) if text else inner
        if origin in UNIONS:
            return self.union(args)
        if origin is typing.Literal:
            return self.choice({encode(v): v for v in args})
        if isinstance(origin, type) and issubclass(origin, enum.Enum):
            return self.choice({encode(enum_json(m)): m for m in origin}, class_doc(origin)[0])
        if isinstance(origin, type) and issubclass(origin, dict) and hasattr(origin, "__total__"):
            return self.record(origin, self.typed_dict_fields, dict)
        if isinstance(origin, type) and dataclasses.is_dataclass(origin):
            return self.record(origin, self.dataclass_fields, origin)
        if origin is tuple and args and args[-1] is not Ellipsis:
            return self.sequence(typing.Union[args], tuple)  # whatever the place, one of the types
        if origin in SEQUENCES:
            return self.sequence(args[0] if args else typing.Any, SEQUENCES[origin])
        if origin in MAPPINGS:
            return self.mapping(*(args or (str, typing.Any)))
        for name in ("__supertype__", "__value__", "__bound__"):  # NewType, type X = …, TypeVar
            if getattr(hint, name, None) is not None:
                return self.of(getattr(hint, name))
        return ANY

    def union(self, args):
        parts = [self.of(a) for a in args if a is not type(None)]
        null = len(parts) < len(args) or any(p.null for p in parts)
        if len(parts) == 1:
            return Type(parts[0].schema, parts[0].convert, null)
        schemas = [p.schema for i, p in enumerate(parts) if all(p.schema != q.schema for q in parts[:i])]
        schema = {"anyOf": schemas}
        if {} in schemas:
            schema = {}
        elif all(list(s) == ["type"] and isinstance(s["type"], str) for s in schemas):
            schema = {"type": [s["type"] for s in schemas]}

        def convert(value):
            if type(value) in (int, float) and type(value) in args:
                return value  # a 1 for "float | int" is an int
            for part in parts[:-1]:
                try:
                    return part.convert(value)
                except Exception:
                    pass  # the next one, then; the last one says what is wrong
            return parts[-1].convert(value)
        return Type(schema, convert, null)

    # One of a few values, by their JSON.
    def choice(self, members, doc=""):
        values = [json.loads(text) for text in members]
        names = list(dict.fromkeys(KINDS[type(v)] for v in values))
        schema = {"type": names[0] if len(names) == 1 else names, "enum": values}
        if doc:
            schema["description"] = doc
        return Type(schema, lambda value: members[encode(value)])

    def sequence(self, hint, make):
        item = self.of(hint)
        return Type({"type": "array", "items": item.whole()}, lambda value: make(map(item.convert, only(list)(value))))

    def mapping(self, key_hint, value_hint):
        item = self.of(value_hint)
        # The keys of a JSON object are strings, whatever they stand for.
        to_key = key_hint if key_hint in (int, float) else self.of(key_hint).convert
        return Type({"type": "object", "additionalProperties": item.whole()},
                    lambda value: {to_key(k): item.convert(v) for k, v in only(dict)(value).items()})

    # A class with fields. One that contains itself is a definition that is referred to; all others are written out.
    def record(self, cls, fields_of, make):
        name = cls.__name__
        if any(d.__name__ == name and d is not cls for d in [*self.open, *self.records]):
            name = cls.__module__ + "." + cls.__qualname__
        ref = Type({"$ref": "#/$defs/" + name}, lambda value: self.records[cls](value))
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
            schema["description"] = text

        def convert(value):
            values = convert_fields(fields, only(dict)(value))
            # A TypedDict is the object as it came; a class takes what it has fields for.
            return {**value, **values} if make is dict else make(**values)
        self.records[cls] = convert
        if cls in self.recursive:
            self.defs[name] = schema
            return ref
        return Type(schema, convert)

    def dataclass_fields(self, cls, docs):
        hints, fields = hints_of(cls), []
        for f in dataclasses.fields(cls):
            if f.init:
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


# The annotations of a function or class. One that can't be evaluated (a name that is
# imported for type checkers only) is left out, and does not take the others with it.
def hints_of(thing):
    try:
        return typing.get_type_hints(thing, include_extras=True)
    except Exception:
        hints, scope = {}, vars(sys.modules[thing.__module__])
    for name, hint in getattr(thing, "__annotations__", {}).items():
        try:
            one = types.SimpleNamespace(__annotations__={name: hint})
            hints.update(typing.get_type_hints(one, scope, include_extras=True))
        except Exception as e:
            print("%s: the annotation of %s can't be read, so it may be anything: %s" % (thing.__name__, name, e), file=sys.stderr)
    return hints


# ---- Docstrings

SECTION = re.compile(r"(Args|Arguments|Parameters|Keyword Args|Keyword Arguments|Attributes):\s*")
ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?:(?:\s+(.*))?")
FIELD = re.compile(r":(?:param|parameter|arg|argument|key|keyword|ivar|var|cvar)\s+(?:[^:]*\s)?\*{0,2}(\w+):\s*(.*)")


# Takes what is said of parameters, in Google's or in reST's form, out of a docstring:
# the text that is left, and the parameters' texts. Lines that begin with @ stay; they are usher's.
def parse_doc(doc):
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


# A class's own description, on one line, and those of its fields.
def class_doc(cls):
    doc = vars(cls).get("__doc__") or ""
    # What dataclasses and Enum put there by themselves says nothing.
    if doc.startswith(cls.__name__ + "(") or doc == "An enumeration.":
        doc = ""
    text, docs = parse_doc(doc)
    return " ".join(text.split()), docs


# ---- A method


def signature_of(function):
    try:
        return inspect.signature(function)
    except NameError:  # from 3.14 on, annotations are evaluated only when asked for
        import annotationlib
        return inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)


# A function with its tool definition.
class Method:
    def __init__(self, name, function):
        self.name, self.function, self.signature = name, function, signature_of(function)
        self.is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
        self.fields = []
        self.rest = self.rest_type = None  # the name and the Type of **kwargs
        # usher's tags may stand in a comment above, too
        above = "".join(re.findall(r"(?m)^# *(@.*\n)", inspect.getcomments(inspect.unwrap(function)) or ""))
        text, docs = parse_doc(inspect.cleandoc(function.__doc__ or "") + "\n" + above)
        hints, kinds = hints_of(inspect.unwrap(function)), Types()
        for p in self.signature.parameters.values():
            hint = hints.get(p.name, typing.Any)
            if p.kind is p.VAR_KEYWORD:
                self.rest, self.rest_type = p.name, kinds.of(hint)
            elif p.kind is not p.VAR_POSITIONAL and p.name != WEBHOOK:
                default = REQUIRED if p.default is p.empty else p.default
                self.fields.append(Field(p.name, kinds.of(hint), default, docs.get(p.name)))
        schema = object_schema(self.fields)
        if self.rest and self.rest_type.schema:
            schema["additionalProperties"] = self.rest_type.whole()
        if kinds.defs:
            schema["$defs"] = dict(sorted(kinds.defs.items()))
        self.tool = {"name": name, "description": text, "inputSchema": schema}

    # Calls the function. Arguments that no parameter takes are ignored.
    def call(self, arguments):
        values = convert_fields(self.fields, arguments)
        hook = self.signature.parameters.get(WEBHOOK)
        if hook:
            values[WEBHOOK] = arguments.get(WEBHOOK, None if hook.default is hook.empty else hook.default)
        if self.rest:
            values[self.rest] = {name: value if name == WEBHOOK else self.rest_type.convert(value)
                                 for name, value in arguments.items() if name not in values}
        bound = inspect.BoundArguments(self.signature, values)
        bound.apply_defaults()
        return self.function(*bound.args, **bound.kwargs)


# ---- A call


# Tells a request to the client from other things that a generator yields.
def is_ask(item):
    return isinstance(item, dict) and "ask" in item and set(item) <= {"ask", "params"}


# One tools/call under way. It is answered once, whatever the method does.
class Call:
    def __init__(self, server, id_, method, params):
        self.server, self.id, self.method = server, id_, method
        self.make = lambda: method.call(params.get("arguments", {}))
        self.token = params.get("_meta", {}).get("progressToken")
        self.lock = threading.Lock()
        # Answered or cancelled: nothing more is sent, but that a call has ended which usher cancelled.
        self.ended = self.cancelled = False
        self.future = None  # of a call on the loop
        self.asked = None  # the future of the last answer that the method waited for

    def start(self):
        self.server.calls[self.id] = self
        if self.method.is_async:
            self.hop(self.make)
        else:
            self.server.jobs.put(self.in_thread)
            if not self.server.idle.acquire(blocking=False):
                threading.Thread(target=self.server.work, daemon=True).start()

    # Drops the answer and all reports. A coroutine is cancelled; a generator is closed when it
    # next yields, or where it asks; a thread can't be stopped from outside, so a plain function
    # runs to its end.
    def cancel(self, by_usher=False):
        with self.lock:
            self.ended, self.cancelled = True, by_usher
        waiting = self.future or self.asked
        if waiting:
            waiting.cancel()

    # Says that a cancelled call has ended, as usher counts what runs.
    def over(self):
        if self.server.calls.pop(self.id, self).cancelled:
            self.server.respond(self.id, "result", "{}")

    def in_thread(self):
        try:
            value = self.make()
            if inspect.isawaitable(value) or inspect.isasyncgen(value):
                return self.hop(lambda: value)  # a decorator hid that the function is async
            if inspect.isgenerator(value):
                value = self.drain(value)
            self.answer(result(value))
        except BaseException as e:  # SystemExit too: it would end the thread without an answer
            self.fail(e)
        self.over()

    def hop(self, make):
        self.future = asyncio.run_coroutine_threadsafe(self.on_loop(make), self.server.loop)
        # Of one cancelled before its first step, too.
        self.future.add_done_callback(lambda _: self.over())

    async def on_loop(self, make):
        try:
            value = make()
            if inspect.isasyncgen(value):
                value = await self.drain_async(value)
            elif inspect.isawaitable(value):
                value = await value
            self.answer(result(value))
        except BaseException as e:  # SystemExit would end the loop, and with it the process
            self.fail(e)

    # What a generator returns, or, if that is None, what it yielded last that was no report and no ask.
    def drain(self, generator):
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

    # Sends the request that a generator yielded; its _meta tells usher which call, and so which
    # client, it belongs to. The future gets its answer, or a RuntimeError; with the call it is cancelled.
    def ask(self, item):
        asked = concurrent.futures.Future()
        key = "ask-%d" % id(asked)
        try:
            params = json.loads(encode(item.get("params", {})))
            params["_meta"] = {**params.get("_meta", {}), "usher/call": self.id}
        except Exception as e:
            asked.set_exception(RuntimeError("ask: params must be an object that can be written as JSON: " + message_of(e)))
            return asked
        with self.lock:
            if self.ended:
                asked.cancel()
                return asked
            self.asked = self.server.asks[key] = asked
            asked.add_done_callback(lambda _: self.server.asks.pop(key, None))
            self.server.write({"id": key, "method": str(item["ask"]), "params": params})
        return asked

    # Sends what a generator yielded, if it is progress or a log message; tells whether it was.
    def report(self, item):
        keys = set(item) if isinstance(item, dict) else set()
        if "progress" in keys and keys <= {"progress", "total", "message"}:
            if self.token is not None:
                params = {key: item[key] for key in ("progress", "total", "message") if item.get(key) is not None}
                self.notify("progress", {"progressToken": self.token, **params})
        elif "log" in keys and keys <= {"log", "level"}:
            level = item.get("level")
            self.notify("message", {"level": level if level in LEVELS else "info", "logger": self.server.name,
                                    "data": item["log"], "_meta": {"usher/call": self.id}})
        else:
            return False
        return True

    def notify(self, method, params):
        try:
            with self.lock:
                if not self.ended:
                    self.server.write({"method": "notifications/" + method, "params": params})
        except Exception as e:
            print("%s: a report can't be written as JSON: %s" % (self.method.name, e), file=sys.stderr)

    def fail(self, e):
        if isinstance(e, asyncio.CancelledError) and self.ended:
            return
        stack = e.__traceback__
        while stack and stack.tb_frame.f_code.co_filename == __file__ and stack.tb_next:
            stack = stack.tb_next
        traceback.print_exception(type(e), e, stack)  # for the log; the caller gets the message alone
        self.answer(failure(message_of(e)))

    def answer(self, result):
        with self.lock:
            if not self.ended:
                self.ended = True
                self.server.respond(self.id, "result", result)

# ---- The server


# The protocol. Its messages are read by a thread of their own; the main thread has the loop.
class Server:
    def __init__(self, name, doc, methods, loop, out):
        self.name, self.doc, self.loop, self.out = name, doc, loop, out
        self.methods = {m.name: m for m in methods}
        self.calls = {}  # by request id; cancelled ones too, until they have ended
        self.asks = {}  # by the id that was sent: futures of answers to come
        self.ended = False
        self.writing = threading.Lock()
        self.jobs, self.idle = queue.SimpleQueue(), threading.Semaphore(0)

    # A thread that makes calls, one after another: to start one takes longer than most of them.
    def work(self):
        while True:
            contextvars.Context().run(self.jobs.get())
            self.idle.release()

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

    def write(self, message):
        self.send(encode({"jsonrpc": "2.0", **message}))

    def read(self, lines):
        for line in lines:
            self.receive(line)
        # Nobody is left to answer. Coroutines and generators may clean up.
        asyncio.run_coroutine_threadsafe(self.end(), self.loop)

    async def end(self):
        for call in list(self.calls.values()):
            call.cancel()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        for _ in range(int(PATIENCE / 0.01)):
            if self.calls or not all(t.done() for t in tasks):
                await asyncio.sleep(0.01)
        self.ended = True
        self.loop.stop()

    # Serves until the end of lines.
    def run(self, lines):
        threading.Thread(target=self.read, args=[lines], name="usher", daemon=True).start()
        while not self.ended:
            try:
                self.loop.run_forever()
            except BaseException:
                pass  # SystemExit in a task that a module started; asyncio logs it

    # Handles one line of usher's.
    def receive(self, line):
        try:
            message = json.loads(line)
        except (ValueError, RecursionError) as e:
            # What Python can't read is JSON all the same: nested too deep, a number of 5,000
            # digits. usher writes the id first, so that its request can be answered.
            id_ = json.loads(re.match(rb'\{"jsonrpc":"2\.0","id":(\d+|"[^"\\]*")', line).group(1))
            if not self.answered(id_, {"error": {"message": "reading the answer: %s" % e}}):
                self.respond(id_, "result", failure("reading the arguments: %s" % e))
            return
        id_, method, params = message.get("id"), message.get("method"), message.get("params", {})
        if method is None:
            self.answered(id_, message)
        elif method == "notifications/cancelled":
            call = self.calls.get(params.get("requestId"))
            if call:
                call.cancel(True)
        elif method == "tools/call" and params.get("name") in self.methods:
            Call(self, id_, self.methods[params["name"]], params).start()
        elif id_ is not None:  # else a notification that says nothing to us
            answer = self.reply(method, params)
            if answer is None:
                self.respond(id_, "error", encode({"code": -32601, "message": "unknown method or tool in " + method}))
            else:
                self.respond(id_, "result", encode(answer))

    # Gives an answer to the ask that waits for it, and tells whether one does.
    def answered(self, id_, message):
        asked = self.asks.get(id_)
        if asked is None or not asked.set_running_or_notify_cancel():  # from here on it can't be cancelled
            return False
        if "error" in message:
            asked.set_exception(RuntimeError(message["error"]["message"]))
        else:
            asked.set_result(message.get("result"))
        return True

    # The results of requests that call no method; None for unknown ones.
    def reply(self, method, params):
        if method == "initialize":
            return {
                "protocolVersion": params.get("protocolVersion"),
                "capabilities": {"tools": {}, "logging": {}},
                "serverInfo": {"name": self.name, "version": "1"},
                "instructions": inspect.cleandoc(self.doc or ""),  # usher takes the first sentence
            }
        if method == "tools/list":
            return {"tools": [m.tool for m in self.methods.values()]}
        return {} if method in ("ping", "logging/setLevel") else None  # usher knows what clients want to hear


# ---- Loading the file


# Takes the protocol's pipes away before the module's first line runs: from here on what it, or
# a process that it starts, prints goes to the log, and reading finds nothing.
def take_stdio():
    lines, out = os.fdopen(os.dup(0), "rb", 1 << 16), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    return lines, out


# The names of the functions that statements define, in their order.
def defined_functions(body):
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield statement.name
        elif not isinstance(statement, ast.ClassDef):
            for inner in ("body", "handlers", "orelse", "finalbody"):  # if, try, with
                yield from defined_functions(getattr(statement, inner, []) or [])


# Runs the file as a module and returns it with its methods.
def load(path, text):
    folder, base = os.path.split(path)
    name = base.split(".usher")[0]
    if sys.path and os.path.abspath(sys.path[0]) == os.path.dirname(os.path.abspath(__file__)):
        del sys.path[0]  # ours; neighbours of the module are to be found, ours are not
    sys.path.insert(0, folder)
    sys.argv = [path]
    tree = ast.parse(text, path)
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


# Why a file could not be loaded, with the last line of the user's own files that led there.
def explain(e, path):
    folder, where = os.path.join(os.path.dirname(path), ""), os.path.basename(path)
    places = [(f.filename, f.lineno) for f in traceback.extract_tb(e.__traceback__)]
    text = "%s: %s" % (type(e).__name__, e.msg if isinstance(e, SyntaxError) else e)
    if isinstance(e, SyntaxError):
        places.append((e.filename or "", e.lineno))
    for file, line in places:
        if os.path.abspath(file).startswith(folder) and "site-packages" not in file and os.path.exists(file):
            where = "%s:%s" % (os.path.relpath(file, folder), line)
    return "%s: %s" % (where, " ".join(text.split()))


def main():
    path = os.path.abspath(sys.argv[1])
    lines, out = take_stdio()
    # Before the module: on Python 3.9 an asyncio.Lock at its top level binds to this loop.
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    text = lines.read(int(sys.argv[2])) if len(sys.argv) > 2 else pathlib.Path(path).read_bytes()
    try:
        name, module, methods = load(path, text)
    except BaseException as e:  # sys.exit at the top level is no start either
        print(explain(e, path), file=sys.stderr)
        sys.stderr.flush()
        os._exit(1)  # whatever threads it has started
    Server(name, module.__doc__, methods, loop, out).run(lines)


if __name__ == "__main__":
    main()
