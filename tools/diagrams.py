"""Draw the diagrams of the docs as SVG files: `python tools/diagrams.py` writes docs/images/*.svg.

The sources are the tables below. The output is committed, so that readers of the repository see it, and
`tests/test_docs.py` checks that it matches this file.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Final, NamedTuple

OUT: Final = Path(__file__).resolve().parent.parent / "docs" / "images"
INK, SOFT, LINE, FILL, ACCENT, PAPER = "#1f2933", "#52606d", "#829ab1", "#f0f4f8", "#2563eb", "#ffffff"
FONT: Final = "font-family='system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif'"


def text(x: float, y: float, words: str, *, size: int = 13, anchor: str = "middle", fill: str = INK) -> str:
    return f"<text x='{x:g}' y='{y:g}' font-size='{size}' text-anchor='{anchor}' fill='{fill}'>{escape(words)}</text>"


def label(x: float, y: float, words: str, *, fill: str = SOFT) -> str:
    """Return a small text with a halo, so that it can be read on top of a line."""
    halo = f"<text stroke='{PAPER}' stroke-width='4' paint-order='stroke' "
    return text(x, y, words, size=12, fill=fill).replace("<text ", halo)


def box(x: float, y: float, width: float, height: float, *, fill: str = FILL, stroke: str = LINE) -> str:
    return f"<rect x='{x:g}' y='{y:g}' width='{width:g}' height='{height:g}' rx='6' fill='{fill}' stroke='{stroke}'/>"


def arrow(x1: float, y1: float, x2: float, y2: float, *, dashed: bool = False) -> str:
    dash = " stroke-dasharray='5 4'" if dashed else ""
    return (
        f"<line x1='{x1:g}' y1='{y1:g}' x2='{x2:g}' y2='{y2:g}' stroke='{SOFT}'"
        f" stroke-width='1.4' marker-end='url(#tip)'{dash}/>"
    )


def curve(path: str) -> str:
    return f"<path d='{path}' fill='none' stroke='{SOFT}' stroke-width='1.4' marker-end='url(#tip)'/>"


def page(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    body = "\n".join(parts)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width:g} {height:g}' width='{width:g}' role='img'"
        f" {FONT}>\n<title>{escape(title)}</title>\n"
        "<defs><marker id='tip' viewBox='0 0 10 10' refX='9' refY='5' markerWidth='7' markerHeight='7' orient='auto'>"
        f"<path d='M0 0 10 5 0 10z' fill='{SOFT}'/></marker></defs>\n"
        f"<rect width='{width:g}' height='{height:g}' rx='8' fill='{PAPER}'/>\n{body}\n</svg>\n"
    )


class Message(NamedTuple):
    """One arrow of a sequence diagram; `source == target` is a note beside that participant."""

    source: int
    target: int
    words: str
    reply: bool = False


def sequence(title: str, participants: Sequence[str], messages: Sequence[Message]) -> str:
    gap, top, step = 220, 74, 44
    width = gap * len(participants)
    height = top + step * len(messages) + 24
    centers = [gap * index + gap / 2 for index in range(len(participants))]
    parts = []
    for center, name in zip(centers, participants, strict=True):
        parts.append(
            f"<line x1='{center:g}' y1='54' x2='{center:g}' y2='{height - 16}' stroke='{LINE}' stroke-dasharray='2 4'/>"
        )
        parts.append(box(center - 84, 18, 168, 36))
        parts.append(text(center, 41, name))
    for index, message in enumerate(messages):
        y = top + step * index + 22
        start, end = centers[message.source], centers[message.target]
        if message.source == message.target:
            parts.append(box(start - 104, y - 18, 208, 28, fill="#fff8e1", stroke="#d9b44a"))
            parts.append(text(start, y + 1, message.words, size=12))
            continue
        inset = 4 if end > start else -4
        parts.append(arrow(start + inset, y, end - inset, y, dashed=message.reply))
        parts.append(label((start + end) / 2, y - 7, message.words, fill=INK))
    return page(width, height, title, parts)


SEQUENCES: Final[Mapping[str, tuple[str, Sequence[str], Sequence[Message]]]] = {
    "enqueue": (
        "Enqueue: a job is durable before the caller gets a response",
        ("Producer", "Engine", "Database"),
        (
            Message(0, 1, "enqueue(type, payload, key)"),
            Message(1, 1, "check size, schema, limits"),
            Message(1, 2, "enqueue batch, one transaction"),
            Message(2, 2, "job + history row + outbox"),
            Message(2, 1, "committed (fsync)", reply=True),
            Message(1, 0, "job, or the first one of that key", reply=True),
            Message(1, 2, "notify waiting workers (a hint)"),
        ),
    ),
    "claim": (
        "Claim: a worker leases due jobs",
        ("Worker", "Engine", "Database"),
        (
            Message(0, 1, "claim(types, limit, lease)"),
            Message(1, 2, "claim, one transaction"),
            Message(2, 2, "expire overdue leases first"),
            Message(2, 2, "lock due jobs, skip locked"),
            Message(2, 2, "fence + 1, status running"),
            Message(2, 1, "leased jobs", reply=True),
            Message(1, 0, "jobs with fence, steps, approval", reply=True),
            Message(0, 1, "heartbeat(fence), until finished"),
        ),
    ),
    "finish": (
        "Finish: a lease ends at most once",
        ("Worker", "Engine", "Database"),
        (
            Message(0, 1, "complete | fail | release (fence)"),
            Message(1, 2, "finish batch, one transaction"),
            Message(2, 2, "id + tenant + fence + worker?"),
            Message(2, 2, "job + history row + outbox"),
            Message(2, 1, "receipt of that history row", reply=True),
            Message(1, 0, "receipt; same call, same receipt", reply=True),
            Message(2, 1, "stale fence: nothing changes", reply=True),
            Message(1, 0, "409 lease_lost", reply=True),
        ),
    ),
    "approval": (
        "Approval: the job waits without a worker",
        ("Worker", "Engine + database", "Approver"),
        (
            Message(0, 1, "request approval (fence, prompt)"),
            Message(1, 1, "waiting_for_approval, no lease"),
            Message(1, 2, "webhook, inbox, approval link"),
            Message(2, 1, "approve(digest, data)"),
            Message(1, 1, "decided once; job is queued"),
            Message(0, 1, "any worker claims it"),
            Message(1, 0, "saved steps and the decision", reply=True),
        ),
    ),
    "webhook": (
        "Webhook: an outbox row is written with the transition",
        ("Database", "Webhook sender", "Your endpoint"),
        (
            Message(0, 0, "transition + outbox row"),
            Message(1, 0, "lease due deliveries"),
            Message(1, 2, "POST, signed, stable id"),
            Message(2, 1, "2xx", reply=True),
            Message(1, 0, "delivered"),
            Message(2, 1, "error or timeout", reply=True),
            Message(1, 0, "retry with backoff, then dead"),
        ),
    ),
}


def states() -> str:
    """Draw the eight statuses and the transitions between them."""
    places = {
        "queued": (250, 90),
        "running": (520, 90),
        "waiting_for_approval": (520, 250),
        "retry": (250, 250),
        "succeeded": (820, 50),
        "failed": (820, 130),
        "dead_letter": (820, 210),
        "cancelled": (820, 290),
    }
    parts = [text(60, 94, "enqueue", size=12, fill=SOFT), arrow(92, 90, 176, 90)]
    for name, (x, y) in places.items():
        terminal = x > 700
        parts.append(
            box(x - 74, y - 20, 148, 40, fill="#e6f0ff" if terminal else FILL, stroke=ACCENT if terminal else LINE)
        )
        parts.append(text(x, y + 5, name))
    arrows = [
        arrow(324, 84, 444, 84),
        arrow(446, 100, 326, 100),
        arrow(594, 84, 744, 56),
        arrow(594, 92, 744, 124),
        arrow(594, 102, 744, 198),
        arrow(530, 112, 530, 228),
        arrow(460, 112, 286, 228),
        arrow(316, 230, 486, 114),
        arrow(596, 240, 744, 146),
        curve("M 450 271 C 40 330 80 150 186 112"),
        arrow(596, 262, 744, 286),
    ]
    labels = [
        (384, 76, "claim"),
        (384, 116, "release"),
        (664, 62, "complete"),
        (690, 106, "fail, not retryable"),
        (664, 152, "no attempts left"),
        (588, 190, "request approval"),
        (318, 158, "fail, lease expiry"),
        (436, 204, "claim, when due"),
        (672, 216, "denied, expired"),
        (254, 304, "approved (or denied with on_deny: resume)"),
        (668, 296, "cancel, from any status"),
        (520, 340, "Terminal statuses (blue) are final. A redrive creates a new job."),
    ]
    parts += arrows + [label(x, y, words) for x, y, words in labels]
    return page(920, 356, "The statuses of a job", parts)


def components() -> str:
    """Draw the parts of a deployment and who talks to whom."""
    rows = [
        (30, ["Your program (SDK)", "CLI", "Dashboard", "HTTP API", "MCP · codeQ · MoonMind"], FILL),
        (130, ["client: one interface, embedded or over HTTP"], "#e6f0ff"),
        (210, ["engine: producers · workers · approvers · operators · maintenance · webhooks"], "#e6f0ff"),
        (290, ["domain: pure decisions (lifecycle, retry, approval, policy, audit hash)"], "#fff8e1"),
        (370, ["SQLite (a file)", "PostgreSQL", "Shards of PostgreSQL"], FILL),
    ]
    width = 920
    parts = []
    for y, names, fill in rows:
        space = (width - 60) / len(names)
        for index, name in enumerate(names):
            parts.append(box(30 + space * index + 6, y, space - 12, 48, fill=fill))
            parts.append(text(30 + space * index + space / 2, y + 29, name, size=12))
    parts += [arrow(460, 80, 460, 128), arrow(460, 180, 460, 208), arrow(460, 260, 460, 288)]
    parts += [curve("M 100 260 C 60 300 60 350 100 368"), text(150, 352, "storage contract", size=12, fill=SOFT)]
    parts.append(text(690, 352, "the database rejects every illegal change", size=12, fill=SOFT))
    return page(width, 440, "The components of Interlock", parts)


def flow() -> str:
    """Draw the front page's picture: the life of one job."""
    names = ["Producer", "Job on disk", "Worker", "Approver", "Audit"]
    notes = [
        "enqueues once per key",
        "SQLite or PostgreSQL",
        "lease + fence, saved steps",
        "decides; no worker waits",
        "hash-chained history",
    ]
    parts = []
    for index, (name, note) in enumerate(zip(names, notes, strict=True)):
        x = 20 + 180 * index
        parts.append(box(x, 24, 150, 58, fill="#e6f0ff" if index == 1 else FILL))
        parts.append(text(x + 75, 48, name, size=14))
        parts.append(text(x + 75, 69, note, size=11, fill=SOFT))
        if index:
            parts.append(arrow(x - 28, 53, x - 3, 53))
    parts.append(
        text(
            460,
            116,
            "A crash at any arrow loses nothing: the next worker resumes after the last saved step.",
            fill=SOFT,
        )
    )
    return page(920, 136, "The life of one job", parts)


def diagrams() -> dict[str, str]:
    """Return every diagram by file name."""
    drawn = {f"{name}.svg": sequence(*source) for name, source in SEQUENCES.items()}
    return {**drawn, "states.svg": states(), "components.svg": components(), "flow.svg": flow()}


def main() -> int:
    OUT.mkdir(parents=True, exist_ok=True)
    for name, drawing in diagrams().items():
        (OUT / name).write_text(drawing)
        print(f"wrote {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
