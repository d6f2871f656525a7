"""The container image: what its Dockerfile says, and in the long form the image built and run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.image import PYTHON_IMAGE, ROOT, TOOLS, USER, build, make_base, run, storage
from tests.support.scratch import LONG


def instructions() -> list[tuple[str, str]]:
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines]


def of(name: str) -> list[str]:
    return [rest for instruction, rest in instructions() if instruction == name]


def test_both_stages_have_the_same_base() -> None:
    """The environment is copied from one to the other, so they need the same Python."""
    assert of("FROM") == [f"{PYTHON_IMAGE} AS build", PYTHON_IMAGE]


def test_only_pinned_packages_are_installed() -> None:
    installs = [part for line in of("RUN") for part in line.split("&&") if "pip install" in part]
    assert len(installs) == 2
    assert "--require-hashes -r requirements/run.txt" in installs[0]
    assert "--no-deps" in installs[1]


def test_it_runs_as_a_user_without_rights_in_a_directory_of_its_own() -> None:
    (made,) = (line for line in of("RUN") if "useradd" in line)
    assert f"--uid {USER} " in made
    assert "--home-dir /data --create-home" in made
    assert (of("USER"), of("WORKDIR")[-1]) == (["interlock"], "/data")
    kubernetes = (ROOT / "deploy" / "kubernetes" / "interlock.yaml").read_text()
    assert set(re.findall(r"runAsUser: (\d+)", kubernetes)) <= {str(USER)}


def test_everything_it_copies_is_in_the_build_context_and_nothing_secret_is() -> None:
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = [word for line in of("COPY") if "--from" not in line for word in line.split()[:-1]]
    assert sorted(copied) == sorted(allowed)
    assert all((ROOT / name).exists() for name in copied)


def test_the_program_knows_its_command() -> None:
    assert of("ENTRYPOINT") == ['["interlock"]']
    (command,) = map(json.loads, of("CMD"))
    assert run(sys.executable, "-m", "interlock", *command, "--help")


if os.environ.get(LONG):  # a base from Debian's packages takes half a minute to several

    def test_the_image_serves_and_runs_jobs_read_only_without_rights() -> None:
        missing = [tool for tool in TOOLS if shutil.which(tool) is None]
        assert not missing, f"no {', '.join(missing)} here: run dev.py prove as root on Debian, which installs them"
        place = Path(tempfile.mkdtemp(prefix="image-", dir="/tmp"))  # podman takes paths of at most 50 characters
        try:
            make_base(place)
            build(place)
            module = [sys.executable, "-m", "tests.support.image", str(place)]
            seen = json.loads(run("unshare", "--net", "--mount", *module))
            assert seen["ready"] == 200
            assert seen["uid"] == USER
            assert seen["job"]["status"] == "succeeded"
            assert seen["job"]["result"] == "Hello Ada"
            assert seen["writable"] != 0
            assert seen["exit_code"] == 0
        finally:
            subprocess.run(["buildah", *storage(place), "rm", "--all"], capture_output=True, check=False)
            subprocess.run(["buildah", *storage(place), "rmi", "--all", "--force"], capture_output=True, check=False)
            shutil.rmtree(place, ignore_errors=True)
