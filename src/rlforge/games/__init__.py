"""Games: adapters to their sources, a player's view, and the way from an answer to an action.

base       the Game protocol and what its implementations share
registry   the sources of games
textarena  TextArena games, with ``legal`` (their legal actions) and ``watchdog`` (a time limit)
openspiel  OpenSpiel games, and exact evaluation in them, with ``openspiel_rules`` (for players)
market     one episode of a market of ``rlforge.continuous.market``
grids      placement games as bit masks
board      positions in a few words, for tiny models
prompts    templates: from a view to token ids or messages
actions    extraction: from an answer to an action
players    scripted opponents
"""
