"""The lab's pages: one folder each, in a site that gives them navigation, login, words and look (`site/`)."""
