"""Commands for users, such as `islices audit`, and the program of `make judged`. The tools can import any part of
islices. Apart from tests, only islices/cli.py imports the tools."""
