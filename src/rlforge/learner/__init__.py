"""The learner: batches of steps in, better weights out.

``learner.py`` is the loop of one update; ``batching.py`` cuts a batch into micro-batches,
``forward.py`` computes log-probabilities, ``optim.py`` holds optimizer and schedule, ``memory.py``
trades computation for memory, ``weights.py`` attaches, saves and loads what is trained.
"""

from rlforge.learner.learner import Learner
from rlforge.learner.optim import learning_rate_factor

__all__ = ["Learner", "learning_rate_factor"]
