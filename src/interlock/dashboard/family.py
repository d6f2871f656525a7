"""The jobs around a job: its tree from the first ancestor to the descendants, and its redrives."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from interlock.dashboard.http import PageRequest
from interlock.domain.job import Filter, Job
from interlock.errors import NotFound

MAX_ANCESTORS: Final = 6
MAX_CHILDREN: Final = 50  # of the job itself
MAX_GRANDCHILDREN: Final = 10  # of each descendant
MAX_DEPTH: Final = 4  # generations below the job
MAX_PARENTS: Final = 10  # descendants of one generation whose children are read
MAX_REDRIVES: Final = 10


class TreeNode(NamedTuple):
    """A job of the tree; `depth` counts from the first node, and `has_more` says that not all children follow."""

    job: Job
    depth: int
    is_here: bool = False
    has_more: bool = False


class Family(NamedTuple):
    """The jobs around a job; `has_older` says that the first node has a parent, redrives are newest first."""

    tree: Sequence[TreeNode]
    has_older: bool
    children: Sequence[Job]
    original: Job | None
    redrives: Sequence[Job]


async def family(request: PageRequest, job: Job) -> Family:
    """Return the jobs around a job; those that were deleted are left out."""
    ancestors = await _ancestors(request, job)
    below, redrives = await asyncio.gather(
        _descendants(request, job), request.client.overview.redrives(job.id, limit=MAX_REDRIVES)
    )
    original = None if job.redrive_of is None else await _if_there(request, job.redrive_of)
    above = [TreeNode(one, depth) for depth, one in enumerate(ancestors)]
    tree = [*above, *_nodes(job, len(ancestors), below, is_here=True)]
    has_older = tree[0].job.parent_id is not None
    return Family(tree, has_older, below[job.id].children, original, redrives)


class _Children(NamedTuple):
    """Children oldest first, and whether there are more."""

    children: Sequence[Job]
    has_more: bool


async def _ancestors(request: PageRequest, job: Job) -> list[Job]:
    """Return the nearest ancestors of a job, oldest first."""
    found: list[Job] = []
    above = job.parent_id
    while above is not None and len(found) < MAX_ANCESTORS:
        parent = await _if_there(request, above)
        if parent is None:
            break
        found.append(parent)
        above = parent.parent_id
    return found[::-1]


async def _descendants(request: PageRequest, job: Job) -> Mapping[str, _Children]:
    """Return the children of a job and of its descendants, by the ID of their parent."""
    found: dict[str, _Children] = {}
    parents, most = [job.id], MAX_CHILDREN
    for _ in range(MAX_DEPTH):
        lists = await asyncio.gather(
            *(request.client.jobs.list(Filter(parent_id=parent, limit=most + 1)) for parent in parents[:MAX_PARENTS])
        )
        for parent, newest in zip(parents, lists, strict=False):
            found[parent] = _Children(newest[:most][::-1], len(newest) > most)
        level = [one.id for parent in parents[:MAX_PARENTS] for one in found[parent].children]
        having = await request.client.overview.parents(level)
        parents, most = [id for id in level if id in having], MAX_GRANDCHILDREN
        found |= {parent: _Children((), has_more=True) for parent in parents}
        if not parents:
            break
    return found


def _nodes(job: Job, depth: int, below: Mapping[str, _Children], *, is_here: bool = False) -> Iterator[TreeNode]:
    """Yield a job and its descendants, each followed by its own."""
    children, has_more = below.get(job.id, _Children((), has_more=False))
    yield TreeNode(job, depth, is_here, has_more)
    for child in children:
        yield from _nodes(child, depth + 1, below)


async def _if_there(request: PageRequest, job_id: str) -> Job | None:
    try:
        return await request.client.jobs.get(job_id)
    except NotFound:
        return None
