"""The addresses of the pages."""

from django.urls import path

from shop import views

urlpatterns = [path("orders", views.create), path("orders/<int:number>", views.read)]
