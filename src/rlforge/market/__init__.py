"""A market in text: prediction markets, perpetual futures, a social feed, and who trades there.

world        the market as agents meet it: state, decide, tick
books        the accounts, between which ``shares`` and ``positions`` move money
predictions  a prediction market, priced by ``lmsr``
perpetuals   a perpetual future
feed         posts, and whom they reach
accounts     what an agent has
actions      actions as JSON, checked for form
state        what an agent sees, as JSON
settlement   what came of decisions
text         states in prose for language models and people, and their answers
compact      states in a dozen words for tiny models
traders      scripted traders; ``crowd`` runs those of a market
money        cents
"""
