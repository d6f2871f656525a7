"""The real CLIs are 740 MB from npm: only the long form installs and runs them."""

from __future__ import annotations

import os

collect_ignore = [] if os.environ.get("INTERLOCK_TEST_LONG") else ["test_real_clis.py"]
