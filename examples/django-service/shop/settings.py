"""Settings of the site. The jobs and the site are in the same database, so that both commit together."""

import os
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

URL = os.environ.get("INTERLOCK_DATABASE", "")
IS_POSTGRES = URL.startswith(("postgresql://", "postgres://"))

SECRET_KEY = os.environ.get("SECRET_KEY", "only-for-the-example")
DEBUG = True
ALLOWED_HOSTS = ["127.0.0.1", "localhost", "testserver"]
ROOT_URLCONF = "shop.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
INSTALLED_APPS = ["interlock.integrations.django_tasks", "shop"]

if IS_POSTGRES:
    given = conninfo_to_dict(URL)
    named = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    place = {ours: str(given[theirs]) for ours, theirs in named.items() if given.get(theirs)}
    DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql", **place}}
else:
    DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(Path("shop.sqlite3").absolute())}}

TASKS = {
    "default": {
        "BACKEND": "interlock.integrations.django_tasks.InterlockBackend",
        "QUEUES": ["default"],
        "OPTIONS": {"database": "default", "url": URL} if IS_POSTGRES else {},
    }
}
