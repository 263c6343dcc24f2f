"""Three clusters for the tests that leave them as they are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.geo import Region, regions


@pytest.fixture(scope="package")
def mesh_of_three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Region]]:
    with regions(tmp_path_factory.mktemp("mesh"), "a", "b", "c") as three:
        yield three
