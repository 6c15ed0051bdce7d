"""The learners that ``benchmarks/learner.py`` compares, each in a process of its own.

``work.py`` is what all of them are given, ``worker.py`` the process around one. Each module has a
class ``Contender(work, count)`` whose ``update()`` is one whole update: forward and backward over
all turns, and one step of AdamW. None but ``rlforge_learner`` imports rlforge, so that the others
run in an environment that has only their own packages.

``unstable_buffer.py`` is the peer of ``benchmarks/buffer.py``.
"""

#: Exit status of a process whose packages are not installed.
ABSENT = 3
