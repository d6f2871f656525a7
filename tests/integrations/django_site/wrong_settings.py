"""Settings with a database of Django that cannot hold jobs."""

from __future__ import annotations

from tests.integrations.django_site.settings import *  # noqa: F403
from tests.integrations.django_site.settings import OPTIONS, TASKS

TASKS = {"default": {**TASKS["default"], "OPTIONS": {**OPTIONS, "database": "default"}}}
