"""Building and running the container image without a daemon and without a network: buildah, podman and runc.

As a program it is run in a network of its own, where only the loopback exists: `unshare --net --mount`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent
TOOLS: Final = ("buildah", "podman", "runc", "mmdebstrap", "unshare", "ip")
BASE: Final = "localhost/interlock-test-base"
IMAGE: Final = "localhost/interlock-test"
PYTHON_IMAGE: Final = "python:3.12-slim"
USER: Final = 10001
READY_SECONDS: Final = 120.0
# runc may not raise limits here, and the cgroups of the machine are not ours.
CONFIGURATION: Final = """
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=2048:2048"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
"""
TASKS: Final = """
import interlock

app = interlock.App()


@app.task
async def write(to: str) -> str:
    return f"Hello {to}"
"""


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False, timeout=1800)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stdout}{done.stderr}"
    return done.stdout


def storage(place: Path) -> list[str]:
    return ["--root", str(place / "store"), "--runroot", str(place / "run"), "--storage-driver", "overlay"]


def make_base(place: Path) -> None:
    """A base like the one the Dockerfile names, from Debian's packages, with the wheels of the run lock."""
    wheels = place / "wheels"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "-d", str(wheels)]
    run(*pip, "--require-hashes", "-r", "requirements/run.txt")
    run(*pip, "hatchling")  # to build Interlock itself
    run(
        "mmdebstrap", "--variant=minbase", "--include=python3,python3-venv,python-is-python3,ca-certificates",
        "bookworm", place / "base.tar",
    )  # fmt: skip
    buildah = ["buildah", *storage(place)]
    container = run(*buildah, "from", "scratch").strip()
    run(*buildah, "add", "-q", container, place / "base.tar", "/")
    run(*buildah, "copy", "-q", container, wheels, "/wheels")
    path = "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    run(*buildah, "config", "--env", "PIP_NO_INDEX=1", "--env", "PIP_FIND_LINKS=/wheels", "--env", path, container)
    run(*buildah, "commit", "-q", container, BASE)


def build(place: Path) -> None:
    """Build our Dockerfile on that base."""
    text = (ROOT / "Dockerfile").read_text()
    file = place / "Dockerfile"
    file.write_text(text.replace(f"FROM {PYTHON_IMAGE}", f"FROM {BASE}"))
    run(
        "unshare", "--net", "buildah", *storage(place), "bud", "--isolation", "chroot", "--pull=never", "-q",
        "-f", file, "-t", IMAGE, ROOT,
    )  # fmt: skip


def try_out(place: Path) -> dict[str, object]:
    """Serve from a read-only container as the user of the image, and run a job in it; return what was seen."""
    run("ip", "link", "set", "lo", "up")
    (place / "containers.conf").write_text(CONFIGURATION)
    os.environ["CONTAINERS_CONF"] = str(place / "containers.conf")
    for name in ("data", "app"):
        (place / name).mkdir()
    (place / "app" / "letters.py").write_text(TASKS)
    os.chown(place / "data", USER, USER)
    podman = ["podman", *storage(place)]
    seen: dict[str, object] = {}
    run(
        *podman, "run", "-d", "--name", "server", "--network", "host", "--read-only", "--cap-drop=all",
        "--volume", f"{place / 'data'}:/data", "--volume", f"{place / 'app'}:/app:ro", "--env", "PYTHONPATH=/app",
        IMAGE, "serve",
    )  # fmt: skip
    try:
        seen["ready"] = _ready()
        inside = [*podman, "exec", "server"]
        seen["uid"] = int(run(*inside, "id", "-u"))
        seen["python"] = run(*inside, "python", "--version").strip()
        id = run(*inside, "interlock", "jobs", "add", "write", '{"to": "Ada"}').strip()
        run(*inside, "interlock", "worker", "letters:app", "--drain")
        seen["job"] = json.loads(run(*inside, "interlock", "jobs", "show", id, "--json"))
        seen["writable"] = subprocess.run(
            [*inside, "touch", "/interlock/x"], capture_output=True, check=False
        ).returncode
        run(*podman, "stop", "-t", "60", "server")
        seen["exit_code"] = int(run(*podman, "inspect", "server", "--format", "{{.State.ExitCode}}"))
    finally:
        subprocess.run([*podman, "rm", "-f", "server"], capture_output=True, check=False)
    return seen


def _ready() -> int:
    """The status of /readyz, once the server answers."""
    deadline = time.monotonic() + READY_SECONDS
    while True:
        try:
            with urllib.request.urlopen("http://127.0.0.1:8420/readyz", timeout=5) as answer:
                return int(answer.status)
        except (urllib.error.URLError, OSError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


if __name__ == "__main__":
    print(json.dumps(try_out(Path(sys.argv[1]))))
