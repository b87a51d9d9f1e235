"""Returns, raises, prints and waits in all ways there are."""

import asyncio
import dataclasses
import datetime
import decimal
import enum
import functools
import os
import pathlib
import sqlite3
import subprocess
import sys
import threading
import time
from typing import Any, Dict, List, Optional, Set, Tuple, Union

import stub

print("at the top level")
lock = asyncio.Lock()  # binds to the loop on Python 3.9
count = 0
events = []


class Color(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Bed:
    rows: int
    color: Color = Color.RED
    next: Optional["Bed"] = None

    def __post_init__(self):
        if self.rows < 0:
            raise ValueError("rows: less than none")


# Parameters


def echo(
    bed: Optional[Bed] = None, beds: List[Bed] = (), by_name: Optional[Dict[str, Bed]] = None, by_day: Optional[Dict[int, str]] = None,
    n: int = 0, x: float = 0.0, at: Optional[datetime.datetime] = None, on: Optional[datetime.date] = None, data: bytes = b"",
    either: Union[int, Bed, None] = None, some: Optional[Set[int]] = None, pair: Optional[Tuple[int, str]] = None, anything: Any = None,
    nullable: Optional[int] = 3, numbers: Union[List[int], List[float], None] = None,
):
    given = {k: v for k, v in locals().items() if v != echo.__defaults__[list(echo.__annotations__).index(k)]}
    return {k: [type(v).__name__, v] for k, v in given.items()}


def required(name: str, times: Optional[int]):
    return [name, times]


def price(of: decimal.Decimal):
    return repr(of)[9:-2]


def keywords(n: int = 1, **rest):
    return {"n": n, "rest": rest}


def positional(a, b=2, /, c=3):
    return [a, b, c]


def gathered(first, second=2, *others: int, last=4):
    return [first, second, others, last]


def named(one: stub.Model, more: List[stub.Model] = ()):
    return [one.name, one, *more]


def handle_hook(_webhook, name: str = "none"):
    return {"name": name, "webhook": _webhook}


# Results


def nothing(): ...
def text(): return "a <b> \u2028 \"c\"\n"
def big(): return {"n": 2**100}
def structured(): return {"a": 1, 2: "b", None: 3}
def record(): return Bed(1, next=Bed(2))
def member(): return Color.RED
def surrogate(): return {"text": "\ud800 and \ud83d\ude00"}


def converted():
    now = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc)
    return [now, now.date(), now.time(), datetime.timedelta(minutes=1), {3, 1, 2}, frozenset("a"), b"hi", pathlib.PurePosixPath("a/b"), {}.keys(), range(2), Color.RED]


def rows():
    db = sqlite3.connect(":memory:")
    db.row_factory = sqlite3.Row
    return db.execute("SELECT 1 AS a, 'x' AS b").fetchall()


# Failures


def fail(): raise ValueError("no <way>")
def fail_key(): return {}["k"]
def fail_chained():
    try:
        1 / 0
    except ZeroDivisionError as e:
        raise ValueError("chained") from e
def leave(): sys.exit(3)
async def leave_async(): sys.exit("later")
async def leave_in_task():
    asyncio.ensure_future(leave_async())
    await asyncio.sleep(0.05)
    return "stayed"
def interrupt(): raise KeyboardInterrupt
def nan(): return {"n": float("nan")}
def cycle():
    a = []
    a.append(a)
    return a
def deep():
    a = []
    for _ in range(100000):
        a = [a]
    return a
def unserialisable(): return {"lock": lock}
def bad_key(): return {(1, 2): 3}
def large(mib: int): return "x" * (mib << 20)


class Rude(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def rude(): raise Rude


# Output


def noise():
    print("printed \ud800")
    sys.__stdout__.write("original\n")
    os.write(1, b"descriptor\n")
    subprocess.run([sys.executable, "-c", "print('child')"], check=True)
    sys.stdout = sys.stderr = None  # and what then?
    sys.stdout = sys.stderr = sys.__stderr__
    return {"stdin": sys.stdin.read(), "line": os.read(0, 10)}


# Generators


def progress(steps: int):
    for n in range(steps):
        yield {"progress": n, "total": steps, "message": "step"}
    yield {"progress": float("nan")}
    yield {"log": "half way"}
    yield {"log": {"n": 1}, "level": "warning"}
    return "done"


async def progress_async():
    yield {"progress": 1}
    yield "not this"
    await asyncio.sleep(0)
    yield {"progress": 2}


def unknown():
    answer = yield {"aks": "m", "params": {}}
    return answer["action"]


async def unknown_async():
    yield {"progress": 1, "more": "the result"}
    yield 2


# Side by side


def sleep(seconds: float):
    time.sleep(seconds)
    return "slept"


async def sleep_async(seconds: float):
    await asyncio.sleep(seconds)
    return "slept"


async def locked():
    async with lock:
        await asyncio.sleep(0)
    return threading.current_thread() is threading.main_thread()


def wrap(f):
    @functools.wraps(f)
    def wrapper(*args, **kwargs):
        return f(*args, **kwargs)
    return wrapper


@wrap
async def wrapped(n: int):
    await asyncio.sleep(0)
    return n


def add(by: int = 1):
    global count
    count += by
    return count


async def wait():
    events.append("waits")
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        await asyncio.sleep(0.05)
        events.append("cancelled")
        raise


def generate():
    try:
        while True:
            time.sleep(0.005)
            yield {"progress": 1}
    finally:
        events.append("closed")


async def generate_async():
    try:
        while True:
            await asyncio.sleep(0.005)
            yield {"progress": 1}
    finally:
        events.append("closed async")


def seen(): return sorted(events)
