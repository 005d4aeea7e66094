"""The command line: parse, call, print.  Data go to stdout, progress to stderr; heavy modules load inside commands."""

from gemmdesc.cli.app import app, main

__all__ = ["app", "main"]
