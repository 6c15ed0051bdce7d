"""Continuous training: each window of decisions is scored, trained on and deployed."""
