"""The tiny models: trained in a minute, they write the action format and play at random."""
