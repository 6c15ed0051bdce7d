"""A market in text: prediction markets, perpetual futures, a social feed and scripted traders.

world        the market as agents use it: state, decide, tick
books        who owns what, and how decisions settle; ``shares`` and ``positions`` move the money
predictions  a prediction market and its scoring rule
perpetuals   a perpetual future
feed         posts, and whom they reach
accounts     balance, positions and memory of an agent; money in cents
actions      actions as JSON, and the check of their form
state        the state that an agent sees, as JSON
text         states in prose for language models and people, and parsing of their answers
compact      states in a dozen words for tiny models
traders      the scripted traders
"""
