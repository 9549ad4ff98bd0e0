"""Tools for users, one command each. They use the core and the suite, and nothing else imports them."""
