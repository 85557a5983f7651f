"""Docker: the CLI, images and how they are built, the volume as containers see it."""
