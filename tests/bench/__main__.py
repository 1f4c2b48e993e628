"""`python -m tests.bench`, from the checkout's root."""

from __future__ import annotations

import sys

from tests.bench import harness

if __name__ == "__main__":
    sys.path.insert(0, str(harness.PACKAGE))
    sys.exit(harness.main(sys.argv[1:]))
