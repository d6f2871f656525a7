"""Two databases that are shards, used as a user would: by their addresses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.postgres import Postgres
from tests.support.shards import copied_shards
from tests.support.stores import APP_LOGIN


@pytest.fixture(scope="module")
def databases(postgres: Postgres) -> Iterator[dict[str, str]]:
    """The databases of the shards for the tests of one file, by name."""
    with copied_shards(postgres) as names:
        yield names


@pytest.fixture
def owners(databases: dict[str, str], postgres: Postgres) -> dict[str, str]:
    """Their addresses for a user with all rights."""
    return {name: postgres.dsn(database) for name, database in databases.items()}


@pytest.fixture
def addresses(databases: dict[str, str], postgres: Postgres) -> dict[str, str]:
    """Their addresses for services."""
    return {name: postgres.dsn(database, user=APP_LOGIN) for name, database in databases.items()}
