"""What a command tells the shell; the same for every command, and documented in docs/cli.md."""

#: It did what it was asked to.
DONE = 0
#: It looked, and found something wrong: `verify` a file that was changed, `doctor` a broken installation.
FOUND = 1
#: The command line was not understood; argparse has the same number for it.
USAGE = 2
#: It was understood, and refused or failed; or its end was not reached.
FAILED = 3
#: Ctrl-C.
INTERRUPTED = 130
