"""`python -m vlalab TASK …`, run by the launcher `./lab`."""

import signal

HANDLES_CTRL_C = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not in a background job
if HANDLES_CTRL_C:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # exit immediately while modules are imported

from vlalab.cli import main  # noqa: E402

if HANDLES_CTRL_C:
    signal.signal(signal.SIGINT, signal.default_int_handler)
main()
