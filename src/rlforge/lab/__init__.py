"""Measures policies: a wing that hangs on the core by its registries.

exact      NashConv and best responses by the whole tree of a game
ladder     runs and players rated against each other
sentinel   signals of training that changed for the worse
verify     recorded games and updates made again
forks      games gone on with from one of their turns
"""
