"""The setting that enables protocol adapters, and adapters of other packages."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import httpx2
import pytest

from interlock import config
from interlock.assemble import open_adapters
from interlock.errors import Invalid
from interlock.faces import GROUP, load_face
from tests.api.test_stopping import process
from tests.support.eventually import RETRY_SECONDS
from tests.test_docs import blocks

GUIDE = (Path(__file__).parents[2] / "docs/how-to/write-a-protocol-adapter.md").read_text()
PROGRAM, (REGISTERED, ENABLED) = blocks(GUIDE, "python")[0], blocks(GUIDE, "toml")
GREEDY = """

class Greedy(Adapter):
    def routes(self):
        from dataclasses import replace

        return [replace(routes[0], path="/v1/jobs")]
"""


def install(place: Path, **points: str) -> None:
    """Put the package of the guide there, as pip would."""
    info = place / "tickets-1.0.dist-info"
    info.mkdir(parents=True)
    (place / "tickets.py").write_text(PROGRAM + GREEDY)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tickets\nVersion: 1.0\n")
    lines = "\n".join(f"{name} = {value}" for name, value in points.items())
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{lines}\n")


def served(cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Return the output of an `interlock serve` that exits immediately."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("INTERLOCK_")}
    return subprocess.run(
        [sys.executable, "-m", "interlock", "serve", "--port", "0"],
        cwd=cwd, env=clean | {"PYTHONPATH": str(cwd / "site"), **environment}, capture_output=True, text=True, check=False,
        timeout=RETRY_SECONDS,
    )  # fmt: skip


def test_no_adapter_is_on_unless_it_is_named(tmp_path: Path) -> None:
    assert config.load({}, environ={}, directory=tmp_path).faces == ()


async def test_adapters_are_named_in_a_list_or_separated_by_commas(tmp_path: Path) -> None:
    given = config.load({}, environ={"INTERLOCK_FACES": "moonmind, codeq,codeq"}, directory=tmp_path)
    assert given.faces == ("moonmind", "codeq")
    (tmp_path / "interlock.toml").write_text('faces = ["codeq"]\n')
    listed = config.load({}, environ={}, directory=tmp_path)
    async with open_adapters(listed, fetch=_no_keys) as opened:
        assert [type(one) for one in opened] == [load_face("codeq")]
    assert config.load({}, environ={"INTERLOCK_FACES": ""}, directory=tmp_path).faces == ()


@pytest.mark.parametrize("value", ["unknown", "codeq,unknown"])
def test_an_adapter_that_is_not_installed_is_rejected(tmp_path: Path, value: str) -> None:
    with pytest.raises(
        Invalid, match="unknown protocol adapter 'unknown': installed are codeq, mcp, moonmind"
    ) as rejection:
        config.load({}, environ={"INTERLOCK_FACES": value}, directory=tmp_path)
    assert rejection.value.pointer == "/faces"


def test_an_adapter_adds_its_settings(tmp_path: Path) -> None:
    (tmp_path / "interlock.toml").write_text("codeq_development = true\n")
    given = config.load({}, environ={"INTERLOCK_CODEQ_WEBHOOK_SECRET": "s"}, directory=tmp_path)
    assert given.face_settings == {"codeq_development": True, "codeq_webhook_secret": "s"}
    where = config.sources({}, environ={"INTERLOCK_CODEQ_WEBHOOK_SECRET": "s"}, directory=tmp_path)
    assert (where["codeq_development"], where["codeq_webhook_secret"]) == (
        config.FILE, "INTERLOCK_CODEQ_WEBHOOK_SECRET",
    )  # fmt: skip
    for name, value in (("codeq_development", "maybe"), ("codeq_webhook_secret", " "), ("codeq_workers", "{}")):
        with pytest.raises(Invalid) as rejection:
            config.load({}, environ={f"INTERLOCK_{name.upper()}": value}, directory=tmp_path)
        assert rejection.value.pointer == f"/{name}"
    (tmp_path / "interlock.toml").write_text("codeq_mistaken = true\n")
    with pytest.raises(Invalid, match="unknown settings: codeq_mistaken"):
        config.load({}, environ={}, directory=tmp_path)


async def test_the_adapter_of_the_guide_is_served_from_another_package(tmp_path: Path) -> None:
    place = tmp_path / "site"
    install(place, **tomllib.loads(REGISTERED)["project"]["entry-points"][GROUP])
    (tmp_path / "interlock.toml").write_text(ENABLED.replace('["', '["codeq", "'))
    with process(cwd=tmp_path, environment={"PYTHONPATH": str(place)}) as (_, address):
        key = {"x-ticket-key": "open sesame"}
        async with httpx2.AsyncClient(base_url=address, headers=key, trust_env=False, timeout=RETRY_SECONDS) as http:
            made = await http.post("/tickets", json={"title": "a", "needsHelp": True, "colour": "red"})
            assert made.status_code == 201
            assert (await http.get(f"/v1/jobs/{made.json()['number']}")).json()["priority"] == 10
            assert (await http.get("/tickets")).json() == {"open": 1}
            for answer, status in (
                (await http.post("/tickets", json={"title": ""}), 422),
                (await http.post("/tickets", content=b"{"), 400),
                (await http.get("/tickets", headers={"x-ticket-key": "?"}), 401),
                (await http.get("/tickets/nothing"), 404),
                (await http.delete("/tickets"), 405),
            ):
                assert (answer.status_code, [*answer.json()]) == (status, ["fault"])
            assert (await http.get("/v1/codeq/admin/queues")).json()[0]["ready"] == 1


@pytest.mark.parametrize(
    ("point", "texts"),
    [
        ("tickets:Nothing", ("package tickets cannot be imported", "Nothing")),
        ("no_such_module:Tickets", ("package tickets cannot be imported", "no_such_module")),
        ("tickets:open_ticket", ("is not a subclass of Adapter", "tickets:open_ticket")),
        ("tickets:Greedy", ("/v1/jobs is served twice",)),
    ],
)
def test_an_adapter_that_cannot_be_served_is_named_at_startup(
    tmp_path: Path, point: str, texts: tuple[str, ...]
) -> None:
    install(tmp_path / "site", broken=point)
    ended = served(tmp_path, INTERLOCK_FACES="broken")
    assert ended.returncode == 4, ended.stderr
    assert all(text in ended.stderr for text in texts), ended.stderr
    assert "Traceback" not in ended.stderr


def test_two_adapters_of_one_name_are_rejected(tmp_path: Path) -> None:
    install(tmp_path / "site", codeq="tickets:TicketAdapter")
    ended = served(tmp_path, INTERLOCK_FACES="codeq")
    assert ended.returncode == 4
    assert "interlock and tickets: uninstall all but one" in ended.stderr


async def _no_keys(url: str) -> bytes:
    raise AssertionError(url)
