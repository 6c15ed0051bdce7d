"""``python -m rlforge``: the command line."""

from rlforge.cli import main

main()
