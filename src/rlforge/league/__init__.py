"""Who the learner plays: versions and opponents, their ratings, and how they are drawn."""
