"""Tasks of Django, which Interlock runs."""

import sys

import interlock
from shop.models import Order

if sys.version_info >= (3, 12):  # Django 6
    from django.tasks import task
else:
    from django_tasks import task


@task
def make_invoice(order_id: int) -> str:
    """Make the invoice of an order. The number is saved as a step: a later attempt uses the same one."""
    ctx = interlock.current()
    number = ctx.step_sync("number", next_number, order_id)
    Order.objects.filter(pk=order_id).update(invoice=number)
    return number


def next_number(order_id: int) -> str:
    return f"2026-{order_id:05}"
