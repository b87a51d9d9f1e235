"""Asks its client, in all ways there are."""

import asyncio
import sys
from typing import Any

events = []


def ask(item: Any):
    return (yield item)


async def ask_async(item: Any):
    yield {"answer": (yield item)}


def careful(item: Any):
    try:
        yield item
    except RuntimeError as e:
        again = yield {"ask": "again"}
        return "%s, then %s" % (e, again["text"])


async def careful_async(item: Any):
    try:
        yield item
    except RuntimeError as e:
        again = yield {"ask": "again"}
        yield "%s, then %s" % (e, again["text"])


def twice():
    first = yield {"ask": "first"}
    nothing = yield {"progress": 1}
    second = yield {"ask": "second"}
    return [first, nothing, second]


async def twice_async():
    first = yield {"ask": "first"}
    nothing = yield {"log": "between"}
    second = yield {"ask": "second"}
    yield [first, nothing, second]


def wait():
    try:
        yield {"ask": "roots/list"}
    except BaseException as e:
        events.append(type(e).__name__)
        print("cleaned up", file=sys.stderr)
        raise


async def wait_async():
    try:
        yield {"ask": "roots/list"}
    except BaseException as e:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        events.append("async " + type(e).__name__)
        raise


def seen(): return sorted(events)
