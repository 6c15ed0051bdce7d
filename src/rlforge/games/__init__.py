"""Games: adapters to their sources, a player's view, and the way from an answer to an action.

base       the Game protocol
registry   the sources of games: textarena, openspiel, ``rlforge.continuous.market``
grids      placement games as bit masks
board      positions in a few words, for tiny models
prompts    templates: from a view to token ids or messages
actions    extraction: from an answer to an action
players    scripted opponents
"""
