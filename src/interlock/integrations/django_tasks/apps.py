"""The app of Django that has the command of the worker."""

from __future__ import annotations

from django.apps import AppConfig


class InterlockConfig(AppConfig):
    name = "interlock.integrations.django_tasks"
    label = "interlock"
