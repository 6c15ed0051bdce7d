"""Games: adapters to their sources, what a player sees, and how its answer becomes a move.

base       what a game is, and which source it comes from
textarena  TextArena games, with ``legal`` (their legal actions) and ``watchdog`` (a time limit)
openspiel  OpenSpiel games, and exact evaluation in them
market     one episode of a market of ``rlforge.market``
grids      placement games as bit masks
board      positions in a few words, for tiny models
prompts    templates: from a view to token ids or messages
actions    extraction: from an answer to an action
players    scripted opponents
play       one game from its spec to its record
"""
