"""Shows every kind of annotation there is a schema for. It has two sentences."""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime
import decimal
import enum
import functools
import os.path  # so that os is a name here, and no method
import pathlib
import typing
import uuid
from os.path import join  # a function, but not defined here
from typing import Any, Dict, List, Literal, Optional, Sequence, Set, Tuple, TypedDict, Union

from typing import Annotated

if typing.TYPE_CHECKING:
    from nowhere import Missing

T = typing.TypeVar("T")
UserId = typing.NewType("UserId", int)
double = lambda n: 2 * n  # not a def


class Color(enum.Enum):
    """How it looks."""

    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


class Pair(enum.Enum):  # values that are no JSON: the names count
    LEFT = (0, 1)
    RIGHT = (1, 0)


@dataclasses.dataclass
class Address:
    """Address is where
    someone lives.

    Attributes:
        street: with the number
        city (str): if it is
            not here
    """

    street: str
    city: str = "here"
    floors: List[int] = dataclasses.field(default_factory=list)
    note: str = dataclasses.field(default="", metadata={"description": "from the metadata"})
    seen: bool = dataclasses.field(default=False, init=False)


@dataclasses.dataclass
class Node:
    """Node is a tree."""

    value: int
    left: Optional[Node] = None
    more: Optional[List[Node]] = None


class Options(TypedDict, total=False):
    deep: bool
    level: int


class Contact(Options):
    email: str


def plain(text: str, whole: int, part: float, yes: bool, nothing: None, any: Any, untyped, missing: Missing, data: bytes):
    """Takes the simple ones."""


def containers(
    a: List[str], b: list, c: Dict[str, int], d: dict, e: Set[int], f: Tuple[int, ...], g: Tuple[int, str],
    h: Sequence[Any], i: collections.abc.Iterable, j: Dict[int, List[float]], k: frozenset,
):
    """Takes those that hold others."""


def choices(
    color: Color, size: Size, pair: Pair, letter: Literal["a", "b"], mixed: Literal[1, "x", None],
    either: Union[int, str], both: Union[int, List[str]], tree: Union[Node, str],
    perhaps: Optional[int], maybe: Optional[Color], perchance: Optional[Address], any: Optional[Any], home: Optional[Node],
    none: Optional[Literal[1, None]], odd: Annotated[int, {}],
):
    """Takes one of several."""


def texts(
    at: datetime.datetime, on: datetime.date, clock: datetime.time, key: uuid.UUID, price: decimal.Decimal,
    path: pathlib.Path, user: UserId, generic: T, described: Annotated[int, object(), "in the annotation"],
):
    """Takes what JSON writes as text."""


def records(address: Address, node: Node, options: Options, contact: Contact, many: Dict[str, Address]):
    """Takes classes with fields."""


def defaults(
    a: int = 1, b: Optional[str] = "x", c: Optional[int] = None, d: Color = Color.BLUE, e: List[int] = [1, 2],
    f: Any = object(), g: float = float("nan"), h: Address = Address("road"), i=True, j: int = None, k: Optional[int] = 3,
):
    """May be called with nothing."""


def google(a: int, b: str, *args: int, **kwargs: int):
    """Is documented in Google's form.

    More text.

    Args:
        a: the first
        b (str, optional): the second: it goes on
            on a second line

            and a third
        **kwargs: the rest

    Returns:
        something: that stays
    @readonly
    """


async def rest(a: int, b: str, /, c: int = 0, *, _webhook, d: bool):
    """
    Is documented in reST's form.

    :param a: the first
    :param int b: the second,
        on two lines
    :type c: int
    :returns: something
    @param c the third
    @webhook some/path
    """


def open_ended(**kwargs):
    yield


# A remark.
# @webhook a/b
#@readonly
@(lambda f: f)
def tagged_above(**fields):
    '''Takes it.

    All of it.'''


@functools.lru_cache()
def decorated(n: int) -> int:
    """Is wrapped."""
    return n


if os.path:
    def conditional(): ...

try:
    import nowhere
except ImportError:
    def fallback(): ...


def _private(): ...


class Callable:
    def method(self): ...


def replaced(): ...


replaced = None
