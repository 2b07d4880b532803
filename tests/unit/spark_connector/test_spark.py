"""What a release of Spark lacks is refused with the release that has it."""

from __future__ import annotations

import pyspark
import pytest

from spark_connector.errors import OptionError
from spark_connector.spark import VERSION, require


def test_what_this_spark_lacks_is_refused_with_the_version_that_has_it() -> None:
    with pytest.raises(OptionError, match=r"the option x needs Spark 99\.1; this is") as caught:
        require((99, 1), "the option x", "leave it out")
    assert pyspark.__version__ in str(caught.value)
    assert "leave it out" in str(caught.value)


def test_what_this_spark_has_is_taken() -> None:
    require(VERSION, "the option x", "leave it out")
