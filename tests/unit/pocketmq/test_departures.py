"""Flights as a pipeline's messages, their counts and their plot."""

from __future__ import annotations

import json
from datetime import date
from xml.etree import ElementTree

from examples.demo import plot
from examples.demo.plain_delays import Figures, Place, counted
from examples.spark import send_flights as departures
from remoting.protocol.queue import MessageQueue

ROW = b"2013,1,1,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z"
CANCELLED = b"2013,1,1,NA,1935,NA,NA,2240,NA,AA,791,NA,LGA,DFW,NA,1389,19,35,2013-01-02T00:00:00Z"
QUEUES = [MessageQueue("flights", "broker-a", number) for number in range(4)]


def flight(day: int, delay: int | None, *, carrier: str = "UA") -> departures.Record:
    return {
        "scheduled": f"2013-01-{day:02}T10:15:00Z",
        "carrier": carrier,
        "flight": 1,
        "tail": None,
        "origin": "EWR",
        "dest": "IAH",
        "delay": delay,
    }


def test_a_flight_has_its_time_to_the_minute_and_its_delay() -> None:
    found = departures.record(ROW)
    assert found["scheduled"] == "2013-01-01T10:15:00Z"
    assert (found["carrier"], found["flight"], found["tail"]) == ("UA", 1545, "N14228")
    assert (found["origin"], found["dest"], found["delay"]) == ("EWR", "IAH", 2)


def test_a_cancelled_flight_has_no_delay_and_maybe_no_plane() -> None:
    found = departures.record(CANCELLED)
    assert (found["delay"], found["tail"]) == (None, None)
    assert departures.message("flights", found, QUEUES).keys == ()


def test_flights_of_one_plane_share_a_queue() -> None:
    one = departures.message("flights", departures.record(ROW), QUEUES)
    other = departures.message("flights", departures.record(ROW) | {"flight": 7}, QUEUES)
    assert one.queue == other.queue
    assert json.loads(one.body)["tail"] == "N14228"
    assert (one.tag, one.keys) == ("UA", ["N14228"])


def test_flights_come_day_by_day() -> None:
    days = [str(one["scheduled"])[:10] for one in departures.records()]
    assert days == sorted(days)
    assert (days[0], days[-1]) == ("2013-01-01", "2014-01-01")


def test_there_are_sixteen_airlines() -> None:
    assert len(departures.airlines()) == 16


def test_a_day_is_counted_when_the_flights_are_a_week_further() -> None:
    flights = [flight(1, 20), flight(1, -3), flight(1, None), flight(2, 15, carrier="AA")]
    assert counted([*flights, flight(8, 0)]) == {}
    first = {Place(date(2013, 1, 1), "EWR", "UA"): Figures(3, 2, 1, 17)}
    assert counted([*flights, flight(9, 0)]) == first
    second = {Place(date(2013, 1, 2), "EWR", "AA"): Figures(1, 1, 1, 15)}
    assert counted([*flights, flight(10, 0)]) == first | second
    assert counted([]) == {}


def test_a_plot_is_a_page_with_a_line_for_each_series() -> None:
    days = [date(2013, 1, day) for day in range(1, 32)]
    series = {"EWR": [(day, day.day - 5.0) for day in days], "a<b": [(days[0], 1.0)]}
    page = plot.page("Delays & more", "min", series, [{"origin": "EWR", "flights": 7}])
    tree = ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>"))
    lines = tree.findall(".//{http://www.w3.org/2000/svg}polyline")
    assert [len(line.attrib["points"].split()) for line in lines] == [31, 1]
    heights = [float(point.split(",")[1]) for point in lines[0].attrib["points"].split()]
    assert heights == sorted(heights, reverse=True)
    assert all(0 <= height <= plot.HEIGHT for height in heights)
    assert [cell.text for cell in tree.findall(".//td")] == ["EWR", "7"]


def test_a_plot_of_nothing_says_so() -> None:
    page = plot.page("Delays", "min", {}, [])
    assert "No data." in page
    ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>"))
