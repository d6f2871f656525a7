"""Settings of a site of Django whose database and jobs the environment names."""

from __future__ import annotations

import os
from typing import Any

from psycopg.conninfo import conninfo_to_dict

JOBS = os.environ["JOBS"]
SQLITE = "sqlite:///"
IS_POSTGRES = not JOBS.startswith(SQLITE)
SECRET_KEY = "for tests"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["django_tasks", "interlock.integrations.django_tasks", "tests.integrations.django_site"]


def database() -> dict[str, Any]:
    if not IS_POSTGRES:
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": JOBS.removeprefix(SQLITE) + ".site"}
    given = conninfo_to_dict(JOBS)
    named = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    return {
        "ENGINE": "django.db.backends.postgresql",
        **{ours: str(given[theirs]) for ours, theirs in named.items() if theirs in given},
    }


DATABASES = {"default": database()}
OPTIONS: dict[str, Any] = {"url": JOBS, "max_attempts": 1, **({"database": "default"} if IS_POSTGRES else {})}
TASKS = {
    "default": {
        "BACKEND": "interlock.integrations.django_tasks.InterlockBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": OPTIONS,
    }
}
