"""`python -m vlalab TASK …`: what the launcher `./lab` runs."""

from vlalab.cli import main

main()
