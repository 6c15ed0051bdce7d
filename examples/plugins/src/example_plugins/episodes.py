"""An episode: what an agent of continuous training does, and its reward."""

from rlforge import Session


async def sums(session: Session) -> float:
    """The model continues a sum; the nearer its answer, the better."""
    a, b = session.number % 10, session.seed % 10
    answer = await session.complete(f"{a} + {b} =")
    digits = "".join(filter(str.isdigit, answer))
    return 1.0 / (1 + abs(int(digits) - a - b)) if digits else -1.0
