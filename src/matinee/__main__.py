"""`python -m matinee`."""

import sys

from matinee.cli import main

sys.exit(main())
