"""The orders of the site."""

from django.db import models


class Order(models.Model):
    """An order, and the number of its invoice once a task has made one."""

    item = models.CharField(max_length=100)
    invoice = models.CharField(max_length=100, blank=True)
