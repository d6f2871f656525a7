"""`interlock` with a disk and a clock that the campaign disturbs.

    python -m campaign.disturbed FILE serve …

The file has a JSON object: `full` is whether SQLite can write nothing, `ahead` how many seconds the clock is ahead. It
is read again and again.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Final

from tests.support.faults import FullDisk

FILES: Final = (".db", "-wal", "-journal")
READ_SECONDS: Final = 0.05


def main() -> None:
    control, real, ahead = Path(sys.argv.pop(1)), time.time_ns, 0
    disk = FullDisk()

    def read() -> None:
        nonlocal ahead
        asked = json.loads(control.read_text())
        disk.full, ahead = FILES if asked["full"] else (), round(asked["ahead"] * 1e9)

    def follow() -> None:
        while True:
            time.sleep(READ_SECONDS)
            read()

    read()
    threading.Thread(target=follow, daemon=True).start()
    time.time_ns = lambda: real() + ahead
    from interlock.cli.main import main as interlock

    interlock()


if __name__ == "__main__":
    main()
