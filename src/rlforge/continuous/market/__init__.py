"""A market in text: prediction markets, perpetual futures, a social feed and scripted traders.

world        the market as agents use it
books        who owns what, and how decisions settle; ``desks`` move the money
predictions  a prediction market and its scoring rule
perpetuals   a perpetual future
feed         posts, and whom they reach
accounts     balance, positions and memory of an agent
actions      actions as JSON
text         states in prose, and parsing of answers; ``compact`` in a dozen words for tiny models
trading      prompts for a model's agents
traders      the scripted traders
game         the market as a game in turns
"""
