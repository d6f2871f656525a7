"""Test the tests: apply one fault at a time to a copy of the tree, and run the tests that must catch it.

    python tools/mutants.py                       every fault of tools/mutants/*.toml
    python tools/mutants.py --only approval       faults whose name contains a text; repeat it for several
    python tools/mutants.py --list                names, files and tests, without running anything
    python tools/mutants.py --sample 20 --seed 7  some of them, in an order that the seed decides

A fault is a `[[fault]]` table: `name`, `file`, `old` and `new` text, and `tests`, the files that must fail. `old` must
occur exactly once in the file; a fault that does not is reported as stale. A missed fault is a missing test; `hung`
means that the tests met the time limit: repeat it with a longer one.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
TABLES: Final = ROOT / "tools" / "mutants"
COPIED: Final = ("src", "tests", "docs", "bench", "campaign", "tools", "deploy", "requirements")
PYTEST: Final = ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header", "--tb=no")
ALL_PASSED: Final = 0
SOME_FAILED: Final = 1


class Fault(NamedTuple):
    """One replacement, and the tests that must notice it."""

    name: str
    file: str
    old: str
    new: str
    tests: list[str]

    def problem(self) -> str | None:
        """Return why the fault cannot be applied to the tree as it is now, or None."""
        file = ROOT / self.file
        if not file.is_file():
            return f"{self.file} does not exist"
        if (found := file.read_text().count(self.old)) != 1:
            return f"the old text occurs {found} times in {self.file}: expected 1"
        if self.old == self.new:
            return "old and new text are equal"
        missing = [test for test in self.tests if not (ROOT / test.partition("::")[0]).exists()]
        return f"no such test: {', '.join(missing)}" if missing or not self.tests else None


def faults(tables: Path) -> list[Fault]:
    """Read all tables, in the order of their names."""
    found = [
        Fault(**one) for table in sorted(tables.glob("*.toml")) for one in tomllib.loads(table.read_text())["fault"]
    ]
    names = [fault.name for fault in found]
    if doubles := sorted({name for name in names if names.count(name) > 1}):
        raise SystemExit(f"names must be unique: {', '.join(doubles)}")
    return found


def copy_tree(to: Path) -> None:
    for name in COPIED:
        shutil.copytree(ROOT / name, to / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ROOT.iterdir():
        if file.is_file():
            shutil.copy2(file, to / file.name)


def run(tree: Path, tests: list[str], seconds: float) -> tuple[int | None, str]:
    """Run tests in the copy; return the exit code, None after the time limit, and the end of the output."""
    given = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [sys.executable, *PYTEST, *tests], cwd=tree, env=given, timeout=seconds, capture_output=True, text=True
        )
    except subprocess.TimeoutExpired:
        return None, ""
    return done.returncode, "\n".join((done.stdout + done.stderr).strip().splitlines()[-6:])


def try_fault(tree: Path, fault: Fault, seconds: float) -> tuple[str, str]:
    """Return the verdict on a fault, and the output if it needs an explanation."""
    file = tree / fault.file
    before = file.read_text()
    file.write_text(before.replace(fault.old, fault.new))
    try:
        code, output = run(tree, fault.tests, seconds)
    finally:
        file.write_text(before)
    if code is None:
        return "hung", ""  # caught by a test that waits, or not tried because the machine is busy
    if code == ALL_PASSED:
        return "missed", ""
    return ("caught", "") if code == SOME_FAILED else ("error", output)


def main() -> int:
    parser = argparse.ArgumentParser(description="Apply faults one at a time and check that the tests catch them.")
    parser.add_argument("--tables", type=Path, default=TABLES, help="directory of the tables (default: tools/mutants)")
    parser.add_argument("--only", action="append", metavar="TEXT", help="faults whose name contains this text")
    parser.add_argument("--list", action="store_true", help="list the faults")
    parser.add_argument("--sample", type=int, metavar="N", help="run N faults, chosen by the seed")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample (default: 0)")
    parser.add_argument("--seconds", type=float, default=300, help="time limit for one fault (default: 300)")
    options = parser.parse_args()
    chosen = [
        fault
        for fault in faults(options.tables)
        if not options.only or any(text in fault.name for text in options.only)
    ]
    if options.sample is not None:
        random.Random(options.seed).shuffle(chosen)
        chosen = chosen[: options.sample]
    if options.list:
        for fault in chosen:
            print(f"{fault.name}\n    {fault.file}\n    {' '.join(fault.tests)}")
    stale = [f"{fault.name}: {problem}" for fault in chosen if (problem := fault.problem()) is not None]
    for line in stale:
        print(f"stale   {line}", flush=True)
    if options.list:
        print(f"{len(chosen)} faults, {len(stale)} stale")
        return 1 if stale else 0
    verdicts: dict[str, list[str]] = {"caught": [], "missed": [], "error": [], "hung": []}
    with tempfile.TemporaryDirectory(prefix="interlock-mutants-") as directory:
        tree = Path(directory) / "tree"
        tree.mkdir()
        copy_tree(tree)
        for fault in chosen:
            if fault.problem() is not None:
                continue
            began = time.monotonic()
            verdict, output = try_fault(tree, fault, options.seconds)
            verdicts[verdict].append(fault.name)
            print(f"{verdict:<7} {time.monotonic() - began:5.1f} s  {fault.name}", flush=True)
            if output:
                print(output, flush=True)
    print(", ".join(f"{len(names)} {verdict}" for verdict, names in verdicts.items()) + f", {len(stale)} stale")
    return 0 if not (verdicts["missed"] or verdicts["error"] or stale) else 1


if __name__ == "__main__":
    sys.exit(main())
