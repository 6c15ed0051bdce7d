"""A market in text: prediction markets, perpetual futures, a social feed, and who trades there."""
