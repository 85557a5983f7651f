"""The tasks of `./lab` in their groups. Each flag and its help are written once, as data (`vlalab.tasks.flags`)."""
