"""Answers questions about the CSV files in this folder, in SQL."""

import csv
import sqlite3
from contextlib import closing
from pathlib import Path

READS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION}


def describe():
    """Lists the tables, one per CSV file, with their columns and their number of rows.

    @readonly
    """
    return {name: {"columns": columns, "rows": len(rows)} for name, columns, rows in _tables()}


def query(sql: str, limit: int = 100):
    """Runs one SELECT statement in SQLite.

    Args:
        sql: the statement, such as SELECT item, sum(quantity) FROM orders GROUP BY item
        limit: maximum number of rows

    @readonly
    """
    with closing(sqlite3.connect(":memory:")) as db:
        for name, columns, rows in _tables():
            # NUMERIC turns text that looks like a number into a number.
            db.execute(f"CREATE TABLE [{name}] ({', '.join(f'[{c}] NUMERIC' for c in columns)})")
            db.executemany(f"INSERT INTO [{name}] VALUES ({', '.join('?' * len(columns))})", rows)
        db.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in READS else sqlite3.SQLITE_DENY)
        found = db.execute(sql)
        names = [column[0] for column in found.description]
        return {"rows": [dict(zip(names, row)) for row in found.fetchmany(limit)]}


def _tables():
    for path in sorted(Path().glob("*.csv")):  # a module runs in its own folder
        with path.open(newline="", encoding="utf-8") as f:
            columns, *rows = csv.reader(f)
        yield path.stem, columns, rows
