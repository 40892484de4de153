"""`python -m scse` is the command `scse`."""

import sys

from scse.cli import main

sys.exit(main())
