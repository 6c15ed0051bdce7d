"""The store of market agents' decisions, and the windows of time in which they are trained on."""
