"""Decisions of agents that live on: written as they happen, grouped by windows of time."""
