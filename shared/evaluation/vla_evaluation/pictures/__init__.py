"""Pictures for policies and films for people."""
