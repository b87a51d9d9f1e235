"""Knows the garden's beds and what was sown in them, in beds.sqlite beside this file."""

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from datetime import date, timedelta
from enum import Enum
from typing import List, Optional

DATABASE = "beds.sqlite"  # a module runs in its own folder

TABLES = """
CREATE TABLE IF NOT EXISTS beds (
    name TEXT PRIMARY KEY, rows INTEGER NOT NULL CHECK (rows > 0), light TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS sowings (
    bed TEXT NOT NULL REFERENCES beds (name) ON DELETE CASCADE, row INTEGER NOT NULL,
    crop TEXT NOT NULL, sown TEXT NOT NULL, days INTEGER NOT NULL, PRIMARY KEY (bed, row));
"""


class Light(Enum):
    SUN = "sun"
    HALF = "half"
    SHADE = "shade"


@dataclass
class Sowing:
    """What was sown in one row of a bed.

    Attributes:
        row: which row, counted from 1
        crop: what was sown
        days: how long it takes to the harvest
        sown: when; today if left out
    """

    row: int
    crop: str
    days: int
    sown: Optional[date] = None


def _open():
    # A connection a call: calls run side by side, and sqlite settles who writes first.
    db = sqlite3.connect(DATABASE, timeout=10)
    db.row_factory = sqlite3.Row
    db.execute("PRAGMA foreign_keys = ON")
    db.executescript(TABLES)
    return closing(db)


def _bed(db, name: str) -> sqlite3.Row:
    bed = db.execute("SELECT * FROM beds WHERE name = ?", [name]).fetchone()
    if bed is None:
        names = ", ".join(row["name"] for row in db.execute("SELECT name FROM beds ORDER BY name"))
        raise LookupError(f"there is no bed {name!r}; there is {names or 'none yet'}")
    return bed


def dig(name: str, rows: int, light: Light = Light.SUN):
    """Makes a new bed.

    Args:
        name: what it is called
        rows: how many rows it has
        light: how much sun it gets
    """
    if rows < 1:
        raise ValueError("a bed has one row at least")
    with _open() as db, db:
        try:
            db.execute("INSERT INTO beds VALUES (?, ?, ?)", [name, rows, light.value])
        except sqlite3.IntegrityError:
            raise ValueError(f"there is a bed {name!r} already") from None
    return {"name": name, "rows": rows, "light": light}


def sow(bed: str, sowings: List[Sowing]):
    """Sows rows of a bed: all of them, or none if one can't be.

    Args:
        bed: the bed's name
        sowings: what goes into which row
    """
    with _open() as db, db:
        rows = _bed(db, bed)["rows"]
        for n, s in enumerate(sowings, 1):
            if not 1 <= s.row <= rows:
                raise ValueError(f"bed {bed!r} has rows 1 to {rows}, and no row {s.row}")
            s.sown = s.sown or date.today()
            try:
                db.execute("INSERT INTO sowings VALUES (?, ?, ?, ?, ?)", [bed, s.row, s.crop, s.sown.isoformat(), s.days])
            except sqlite3.IntegrityError:
                raise ValueError(f"row {s.row} of bed {bed!r} is taken") from None
            yield {"progress": n, "total": len(sowings), "message": f"{s.crop} in row {s.row}"}
    return sowings


def beds(light: Optional[Light] = None):
    """Lists the beds, with what grows in them.

    Args:
        light: only beds with so much sun

    @readonly
    """
    with _open() as db:
        found = db.execute("SELECT * FROM beds WHERE ? IN (light, '') ORDER BY name", [light.value if light else ""]).fetchall()
        crops = db.execute("SELECT bed, row, crop FROM sowings ORDER BY row").fetchall()
    return [{**dict(b), "crops": {c["row"]: c["crop"] for c in crops if c["bed"] == b["name"]}} for b in found]


def ripe(on: Optional[date] = None):
    """Lists what can be harvested, what has waited longest first.

    Args:
        on: the day to look at; today if left out

    @readonly
    """
    day = on or date.today()
    with _open() as db:
        rows = db.execute("SELECT * FROM sowings").fetchall()
    due = [(date.fromisoformat(r["sown"]) + timedelta(days=r["days"]), r) for r in rows]
    due = sorted(((d, r) for d, r in due if d <= day), key=lambda item: (item[0], item[1]["bed"], item[1]["row"]))
    return [{"bed": r["bed"], "row": r["row"], "crop": r["crop"], "since": d} for d, r in due]


def harvest(bed: str, row: int):
    """Takes what grows in a row out of its bed.

    Args:
        bed: the bed's name
        row: which row, counted from 1

    @destructive
    """
    with _open() as db, db:
        _bed(db, bed)
        taken = db.execute("SELECT crop FROM sowings WHERE bed = ? AND row = ?", [bed, row]).fetchone()
        if taken is None:
            raise LookupError(f"nothing grows in row {row} of bed {bed!r}")
        db.execute("DELETE FROM sowings WHERE bed = ? AND row = ?", [bed, row])
    return taken["crop"]
