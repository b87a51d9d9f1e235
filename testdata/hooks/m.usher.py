def handleIt(name: str, n: int = 0, _webhook=None):
    """Takes it."""
    return {"name": name, "n": n, "_webhook": _webhook}


def other(_webhook=None):
    """Takes it too.

    @webhook any/path
    """
    return {"_response": {"status": 201, "body": _webhook["method"]}}


def handleSigned():
    """@signature github WH_KEY_SIGNING_SECRET"""
    return 1


def handleFail():
    """Fails."""
    raise ValueError("no more")
