"""Each command of Apache's administration tool compares with Apache's broker as the docs say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop import mqadmin
from tests.interop.apache import VERSIONS

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_command_compares_as_the_table_in_the_docs_says(
    version: str, tmp_path: Path
) -> None:
    assert await mqadmin.column(version, tmp_path) == mqadmin.committed(version)


def test_the_shape_of_an_output_is_its_lines_without_their_values() -> None:
    first = "#Topic  #Offset\nOrders  12\nOrders  3\n\tat java.lang.Thread\n"
    assert mqadmin.shape(first) == {"#Topic #Offset", "Orders #"}
    assert mqadmin.shape("#Topic #Offset\nBills 1") != mqadmin.shape(first)
