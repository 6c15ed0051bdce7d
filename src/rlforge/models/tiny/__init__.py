"""The tiny models: made on the spot, speak the action format, play at random, learn fast.

``recipe`` says what they are, ``vocabulary`` builds their tokenizers, ``corpus`` and ``market``
play what they learn from, ``warmup`` trains them, and ``create`` puts these together.
"""
