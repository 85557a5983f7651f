"""Shared by all pages: login, texts in both languages, styles, and clients of other services."""
