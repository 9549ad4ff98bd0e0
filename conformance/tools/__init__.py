"""Tools for users; each tool is one command. The tools use the core and the suite, and nothing else imports the
tools."""
