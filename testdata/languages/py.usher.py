import time
from typing import Optional


def handleContact(email: str, message: str, copies: Optional[int] = None, _webhook: Optional[dict] = None):
    """Takes a contact form.

    @param email where to answer
    @param message what it is about
    @param copies how many to send
    """
    if _webhook and time.time() * 1000 - _webhook["timestamp"] > 60_000:
        raise ValueError("the request is too old")
    return {"copies": copies or 1, "thanks": email}


def pause():
    """Takes a second."""
    time.sleep(1)
    return "done"
