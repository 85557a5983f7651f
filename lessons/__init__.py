"""The course's models once more, plain: each file is read from top to bottom and needs none of the others."""
