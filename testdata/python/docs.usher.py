"""
.. module:: docs
   :synopsis: Not this.

Shows docstrings and pydantic's annotations.
============================================
"""

from __future__ import annotations

from typing import Annotated, List, Optional

import stub


def numpy(width, height=2.0, *args, **kwargs):
    """Calculates an area.

    Parameters
    ----------
    width : float
        Width in metres.

        It may be large.
    height : float, optional
        Height in metres.
    *args, **kwargs
        What else there is.

    Returns
    -------
    float
        The area, in square
        metres.

    See Also
    --------
    google : does more
    @readonly
    """


def numpy_untyped(x, y):
    """Has two names in one entry, and a result without a text.

    Parameters
    ----------
    x, y : int
        Coordinates.

    Returns
    -------
    bool
    """


def google(first: int, *others: int):
    """Adds.

    Args:
        first: first number
        *others: more numbers

    Returns:
        the sum
    """


def sphinx(a, b):
    """Is documented by fields.

    .. deprecated:: 1.0

    :param a: the first,
        on two lines
    :type a: str
    :param Optional[int] b: the second
    :raises ValueError: if it is wrong,
        on two lines
    :rtype: int
    :return: a number
    """


def silent(a):
    """Returns what it does not describe.

    :return:
    """


def epytext(a):
    """Is documented by Epytext.

    @param a: the first
    """


def fields(
    digit: Annotated[int, stub.Field(description="a digit", metadata=[stub.Limit(ge=1, le=9)])],
    text: Annotated[str, stub.Field(description="a text")],
    times: Annotated[int, stub.Field(lt=9)] = 2,
):
    """Is annotated as FastMCP's tools are."""


def models(one: stub.Model, perhaps: Optional[stub.Model] = None, more: List[stub.Model] = []):
    """Takes classes of pydantic."""
