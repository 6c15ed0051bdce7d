"""The tiny model: made on the spot, speaks the action format, plays at random, learns fast.

``recipe`` says what it is, ``vocabulary`` builds its tokenizer, ``corpus`` plays the games it
learns from, ``warmup`` trains it, and ``create`` puts these together.
"""
