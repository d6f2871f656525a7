"""A worker and a fake model API on the loopback of their own network, for one of the real agent CLIs.

Run in `unshare -n`: nothing that the CLI sends can leave it. The argument is a JSON file with the script of the models and
what happens between the runs of the job; the output is JSON: the states of the job, its events and the model requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import interlock
from interlock import Worker
from interlock.agent_cli.runner import AgentOptions, declare
from tests.agent_cli.fake_models import FakeModels
from tests.support.eventually import eventually

SECRET = "fake-key-0123456789"


def options(spec: dict[str, Any], url: str, place: Path) -> AgentOptions:
    """The command with its environment: fake keys, the fake models, and an empty home directory."""
    adapter, bin = spec["adapter"], Path(spec["bin"])
    home = place / "home"
    home.mkdir()
    environment = {"HOME": str(home), "XDG_CONFIG_HOME": str(home), "XDG_CACHE_HOME": str(home)}
    command = [str(bin / adapter)]
    match adapter:
        case "claude":
            environment |= {
                "ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": SECRET, "DISABLE_AUTOUPDATER": "1",
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "CLAUDE_CODE_MAX_RETRIES": "0", "IS_SANDBOX": "1",
            }  # fmt: skip
            command += ["--model", "claude-sonnet-4-5"]
        case "codex":
            provider = {"name": "fake", "base_url": f"{url}/v1", "env_key": "FAKE_KEY", "wire_api": "responses"}
            settings = {"model_provider": "fake", "model_providers.fake.request_max_retries": 0}
            settings |= {f"model_providers.fake.{name}": value for name, value in provider.items()}
            command += [word for name, value in settings.items() for word in ("-c", f"{name}={json.dumps(value)}")]
            environment |= {"FAKE_KEY": SECRET, "CODEX_HOME": str(home)}
        case "gemini":
            settings_file = home / ".gemini" / "settings.json"
            settings_file.parent.mkdir()
            once = {"maxAttempts": 1}  # it would wait by itself for minutes
            auth = {"auth": {"selectedType": "gemini-api-key"}}
            settings_file.write_text(json.dumps({"security": auth, "general": once}))
            command += ["-m", "gemini-2.5-pro"]
            environment |= {
                "GEMINI_API_KEY": SECRET,
                "GOOGLE_GEMINI_BASE_URL": url,
                "GEMINI_TELEMETRY_ENABLED": "false",
            }
    environment = {name: value for name, value in (environment | spec.get("environment", {})).items() if value}
    command += spec.get("words", [])
    given: dict[str, Any] = {"approve_tools": spec["approve_tools"]} if "approve_tools" in spec else {}
    if "schema" in spec:
        given["schema"] = place / "schema.json"
        given["schema"].write_text(json.dumps(spec["schema"]))
    return AgentOptions(
        adapter, command, work_dir=place / "jobs", keep="always", environment=environment, idle_timeout=240.0, **given
    )


async def main(spec: dict[str, Any], place: Path) -> dict[str, Any]:
    (place / "models.log").touch()
    models = FakeModels(spec["replies"], place / "models.log")
    os.environ["INTERLOCK_TOKEN"] = "secret-of-the-worker"
    database = f"sqlite:///{place}/jobs.db"
    async with interlock.App(database, artifacts=str(place / "artifacts")) as app:
        chosen = options(spec, models.url, place)
        task = declare(app, "agent", chosen)
        handle = await task.enqueue(spec["payload"])
        if "settings" in spec:
            file = chosen.work_dir / handle.id / "work" / ".claude" / "settings.json"
            file.parent.mkdir(parents=True)
            file.write_text(json.dumps(spec["settings"]))
        played = interrupted(app, handle, spec, chosen, database) if "end" in spec else between(app, handle, spec)
        states = [state async for state in played]
        events = await handle.events()
        files = [one.name for one in await app.artifacts.list(handle.id)]
    log = [json.loads(line) for line in models.log.read_text().splitlines()]
    return {
        "states": [dataclasses.asdict(state) for state in states],
        "events": [dataclasses.asdict(event) for event in events],
        "files": files,
        "requests": [{name: one[name] for name in ("protocol", "turn", "failed")} for one in log],
    }


async def between(app: interlock.App, handle: Any, spec: dict[str, Any]) -> AsyncIterator[interlock.Job]:
    """Runs of the job by a worker in this process, with what happens between them."""
    for action in (None, *spec.get("between", ())):
        if action == "run_now":
            await app.jobs.run_now(handle.id)
        elif action is not None:
            (approval,) = await app.approvals.list(status="open")
            await app.approvals.decide(approval.id, action)
        await Worker(app, name="w").run(drain=True)
        yield await handle.refresh()


async def interrupted(
    app: interlock.App, handle: Any, spec: dict[str, Any], chosen: AgentOptions, database: str
) -> AsyncIterator[interlock.Job]:
    """A run by the command `interlock agent run` that is ended when the file `reached` is there."""
    lease = "10" if spec["end"] in ("worker", "both") else "60"  # that of a killed worker has to expire
    agent_run = [sys.executable, "-m", "interlock", "agent", "run", "--type", "agent", "--adapter", chosen.adapter]
    agent_run += ["--work-dir", str(chosen.work_dir), "--keep", "always", "--lease", lease, "--database", database]
    agent_run += [word for name, value in chosen.environment.items() for word in ("--env", f"{name}={value}")]

    def started(*more: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*agent_run, *more, "--", *chosen.command], env={**os.environ, "SECRET": SECRET})

    reached = chosen.work_dir / handle.id / "work" / "reached"
    worker = started()
    await eventually(lambda: asyncio.to_thread(reached.exists))
    if spec["end"] == "cancel":
        await handle.cancel()
    if spec["end"] in ("cli", "both"):
        kill_command(handle.id)
    if spec["end"] in ("worker", "both"):
        worker.kill()

    async def has_no_process() -> bool:
        return not marked(handle.id)

    if spec["end"] != "cli":  # then the next attempt begins at once
        await eventually(has_no_process)
    yield await handle.refresh()
    if spec["end"] in ("worker", "both"):
        worker.wait()
        worker = started()

    async def has_ended() -> bool:
        return (await handle.refresh()).finished_at is not None

    await eventually(has_ended)
    worker.terminate()
    worker.wait()
    await eventually(has_no_process)
    yield await handle.refresh()


def kill_command(job_id: str) -> None:
    """Kill the CLI and what it runs, but not its supervisor."""
    for pid in marked(job_id):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if "supervisor.py" not in Path(f"/proc/{pid}/cmdline").read_text():
                os.kill(pid, signal.SIGKILL)


def marked(job_id: str) -> list[int]:
    """The live processes of a job."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if f"INTERLOCK_JOB_ID={job_id}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


if __name__ == "__main__":
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    where = Path(sys.argv[1])
    found = asyncio.run(main(json.loads(where.read_text()), where.parent))
    (where.parent / "found.json").write_text(json.dumps(found, default=str))
