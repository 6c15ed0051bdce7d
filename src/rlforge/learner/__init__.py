"""The learner: batches of steps in, better weights out.

``learner.py`` is the loop of one update; ``batching.py`` cuts a batch into micro-batches,
``forward.py`` computes log-probabilities, ``optim.py`` holds optimizer and schedule, ``memory.py``
trades computation for memory, ``weights.py`` saves and loads what is trained, ``policy.py`` holds
it together with the model before training, ``metrics.py`` says what an update reports, and
``build.py`` makes a learner from a configuration. Several processes make one update together:
``ranks.py`` is what they tell each other, ``division.py`` who computes which rows, ``sharding.py``
a model of which each holds a part.
"""

from rlforge.learner.learner import Learner
from rlforge.learner.optim import learning_rate_factor

__all__ = ["Learner", "learning_rate_factor"]
