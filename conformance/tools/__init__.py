"""Commands for users, such as `islices audit`, and the program of `make judged`. The tools import the core and the
suite. Apart from tests, only islices/cli.py imports the tools."""
