"""Is hosted. Here."""
import os

count = 0

def add(by: int = 1):
    """Adds."""
    global count
    count += by
    return {"count": count}

def walk(steps: int):
    for n in range(steps):
        yield {"progress": n + 1, "total": steps}
        yield {"log": f"step {n}"}
    return "there"

def crash(): os._exit(3)
