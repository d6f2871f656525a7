"""A backend for Django's tasks: each enqueued task is a job.

TASKS = {"default": {"BACKEND": "interlock.integrations.django_tasks.InterlockBackend"}}

Workers run with `manage.py interlock_worker`, if this package is one of the installed apps.
"""

from interlock.integrations.django_tasks.backend import InterlockBackend as InterlockBackend

__all__ = ["InterlockBackend"]
