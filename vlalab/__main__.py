"""`python -m vlalab TASK …`: what the launcher `./lab` runs."""

import signal

HEARS_CTRL_C = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # a job in the background does not
if HEARS_CTRL_C:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # while modules are imported there is nothing to end in order

from vlalab.cli import main  # noqa: E402

if HEARS_CTRL_C:
    signal.signal(signal.SIGINT, signal.default_int_handler)
main()
