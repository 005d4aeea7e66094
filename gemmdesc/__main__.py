"""``python -m gemmdesc``: the command line."""

from gemmdesc.cli import main

main()
