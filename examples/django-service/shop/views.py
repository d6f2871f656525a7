"""The pages of the site: a new order and its invoice."""

from __future__ import annotations

import json

from django.db import transaction
from django.http import Http404, HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from shop.models import Order
from shop.tasks import make_invoice


@csrf_exempt
@require_POST
def create(request: HttpRequest) -> JsonResponse:
    """Store an order and enqueue its task: on PostgreSQL both commit, or neither does."""
    with transaction.atomic():
        order = Order.objects.create(item=json.loads(request.body)["item"])
        if transaction.get_connection().vendor == "postgresql":
            make_invoice.enqueue(order.pk)
        else:  # SQLite has no common transaction: enqueue after the commit
            transaction.on_commit(lambda: make_invoice.enqueue(order.pk))
    return JsonResponse({"order": order.pk}, status=202)


def read(request: HttpRequest, number: int) -> JsonResponse:
    order = Order.objects.filter(pk=number).first()
    if order is None:
        raise Http404
    return JsonResponse({"item": order.item, "invoice": order.invoice})
