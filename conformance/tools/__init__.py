"""Tools for users, a command each, made of the core and of what the suite has; nothing else imports them."""
