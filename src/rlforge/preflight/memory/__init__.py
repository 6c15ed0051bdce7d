"""What a run needs of a card's memory, by arithmetic alone: no framework is loaded."""
