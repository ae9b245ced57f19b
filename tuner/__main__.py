"""`python -m tuner` is the command `tuner`."""

from tuner.cli import main

main()
