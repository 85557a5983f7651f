"""The notebook server, with a control group of the test's own: $CGROUP."""

import os
from pathlib import Path

from vla_common import memory

memory.CGROUP = Path(os.environ["CGROUP"])  # before the server counts

if __name__ == "__main__":
    from vla_notebooks.__main__ import main

    main()
