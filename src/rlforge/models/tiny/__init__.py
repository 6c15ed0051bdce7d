"""The tiny models: trained in a minute, they write the action format, play at random, learn fast.

``recipe`` holds settings and plays the games they learn from, ``vocabulary`` builds tokenizers,
``corpus`` training arrays, and ``create`` trains the models.
"""
