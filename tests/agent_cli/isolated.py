"""A worker and a fake model API on the loopback of their own network, for one of the real agent CLIs.

Run in `unshare -n`: nothing that the CLI sends can leave it. The argument is a JSON file with the script of the models and
what happens between the runs of the job; the output is JSON: the states of the job, its events and the model requests.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import interlock
from interlock import Worker
from interlock.agent_cli.runner import AgentOptions, declare
from tests.agent_cli.fake_models import FakeModels

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
            settings_file.write_text(json.dumps({"security": {"auth": {"selectedType": "gemini-api-key"}}}))
            command += ["-m", "gemini-2.5-pro"]
            environment |= {
                "GEMINI_API_KEY": SECRET,
                "GOOGLE_GEMINI_BASE_URL": url,
                "GEMINI_TELEMETRY_ENABLED": "false",
            }
    given = {"approve_tools": spec["approve_tools"]} if "approve_tools" in spec else {}
    return AgentOptions(
        adapter, command, work_dir=place / "jobs", keep="always", environment=environment, idle_timeout=240.0, **given
    )


async def main(spec: dict[str, Any], place: Path) -> dict[str, Any]:
    (place / "models.log").touch()
    models = FakeModels(spec["replies"], place / "models.log")
    os.environ["INTERLOCK_TOKEN"] = "secret-of-the-worker"
    states = []
    async with interlock.App(f"sqlite:///{place}/jobs.db", artifacts=str(place / "artifacts")) as app:
        task = declare(app, "agent", options(spec, models.url, place))
        handle = await task.enqueue(spec["payload"])
        for between in (None, *spec.get("between", ())):
            if between == "run_now":
                await app.jobs.run_now(handle.id)
            elif between is not None:
                (approval,) = await app.approvals.list(status="open")
                await app.approvals.decide(approval.id, between)
            await Worker(app, name="w").run(drain=True)
            states.append(await handle.refresh())
        events = await handle.events()
        files = [one.name for one in await app.artifacts.list(handle.id)]
    log = [json.loads(line) for line in models.log.read_text().splitlines()]
    return {
        "states": [dataclasses.asdict(state) for state in states],
        "events": [dataclasses.asdict(event) for event in events],
        "files": files,
        "requests": [{name: one[name] for name in ("protocol", "turn", "failed")} for one in log],
    }


if __name__ == "__main__":
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    where = Path(sys.argv[1])
    found = asyncio.run(main(json.loads(where.read_text()), where.parent))
    (where.parent / "found.json").write_text(json.dumps(found, default=str))
