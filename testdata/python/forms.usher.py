from typing import Literal
def handle_all(text: str, n: int, x: float, yes: bool, some: list, other: dict,
               kind: Literal["it's", "b"], left: int = 3):
    """Takes everything."""
    return kind
def handle_signed():
    """Takes what is signed.

    @signature github GITHUB_WEBHOOK_SECRET
    """
