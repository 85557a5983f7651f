"""The lab's pages, one directory each; `site/` has navigation, login, texts and styles."""
