"""The command line: parse, call, print. One module for each command."""
