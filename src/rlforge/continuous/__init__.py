"""Trains for ever: a wing that hangs on the core by its registries.

market     the simulated market and its traders
decisions  the store of what agents decided, in windows of time
ruler      scores of decisions
loop       windows are scored, trained on and deployed
serving    versions of a policy behind an OpenAI-compatible endpoint
"""
