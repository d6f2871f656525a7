"""The guide for Python users is run as it stands, and leaves out nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from interlock.sdk.context import Context
from interlock.sdk.tasks import Options

pytest_plugins = ["pytester"]

GUIDE = (Path(__file__).parents[2] / "docs" / "how-to" / "write-tasks.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
PRINTED = ["hello ada, hello ada\n", "14 ['counting']\n", "0 the tide comes in \n", "True True queued\n"]


@pytest.mark.parametrize(("program", "printed"), list(zip(PROGRAMS[:4], PRINTED, strict=True)))
def test_every_program_of_the_guide_does_what_it_describes(program: str, printed: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(printed)


def test_the_test_of_the_guide_passes(pytester: pytest.Pytester) -> None:
    pytester.makeconftest('pytest_plugins = ["interlock.testing"]')
    pytester.makepyfile(PROGRAMS[4])
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


def test_there_are_no_other_programs() -> None:
    assert len(PROGRAMS) == 5


@pytest.mark.parametrize("option", list(Options.__annotations__))
def test_every_option_is_in_the_guide(option: str) -> None:
    assert f"`{option}`" in GUIDE


VERBS = [name for name in dir(Context) if not name.startswith("_") and not name.endswith("_sync")]


@pytest.mark.parametrize("verb", [v for v in VERBS if v not in {"id", "attempt"}])
def test_every_method_of_the_context_is_in_the_guide(verb: str) -> None:
    assert re.search(rf"ctx\.{verb}\b", GUIDE)
