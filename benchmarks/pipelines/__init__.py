"""The peers that ``benchmarks/end_to_end.py`` compares with ``rlforge train``, each in a process.

``work.py`` is what all of them are given, ``selfplay.py`` the games they play, ``worker.py`` the
process around one. Each module has ``run(work, updated)``: whole training, playing and learning by
turns, with a call of ``updated`` behind every update. Of rlforge they take what a game is (rules,
prompts, reading of actions), so that all play the same ones; that needs TextArena and no more.
"""
