"""Training for ever: windows of decisions, scored, learned from, deployed."""
