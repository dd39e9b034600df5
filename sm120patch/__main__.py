"""Allow `python -m sm120patch`."""

from sm120patch.cli.main import main

main()
