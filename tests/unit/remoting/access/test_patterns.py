"""Address patterns match what those of 4.9.7 match."""

import json
from pathlib import Path

import pytest

from remoting.access.patterns import parse

GOLDEN = json.loads((Path(__file__).parents[3] / "golden" / "acl_addresses.json").read_text())
ACCEPTED = {text: found for text, found in GOLDEN["patterns"].items() if found is not None}
REFUSED = GOLDEN["patterns"].keys() - ACCEPTED.keys()


@pytest.mark.parametrize("text", ACCEPTED)
def test_a_pattern_matches_the_same_addresses_as_the_original(text: str) -> None:
    pattern = parse(text)

    found = "".join(str(int(pattern(address))) for address in GOLDEN["addresses"])

    assert found == ACCEPTED[text]


@pytest.mark.parametrize("text", sorted(REFUSED))
def test_what_the_original_refuses_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not|has|are for"):
        parse(text)
