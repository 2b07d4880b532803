"""The enumerations match the captures, and don't overlap with our own codes."""

from __future__ import annotations

from remoting.protocol.codes import OWN_REQUEST_CODES, Language, RequestCode, ResponseCode
from tests.unit.remoting.protocol.captured_frames import FILES, lines


def test_every_captured_request_has_its_name() -> None:
    for file_name in FILES:
        for line in lines(file_name):
            if line["type"] != "response" and line["code"] != 9999:
                assert RequestCode(line["code"]).name == line["code_name"]


def test_every_captured_answer_is_known() -> None:
    for file_name in FILES:
        for line in lines(file_name):
            if line["type"] == "response":
                assert line["code_name"] in ResponseCode.__members__
                assert ResponseCode[line["code_name"]] == line["code"]


def test_our_own_request_codes_are_unused_by_rocketmq() -> None:
    assert not set(RequestCode) & set(OWN_REQUEST_CODES)
    assert OWN_REQUEST_CODES[-1] <= 0x7FFF


def test_only_pop_codes_are_too_large_for_a_binary_header() -> None:
    assert {code for code in RequestCode if code > 0x7FFF} == {*range(200050, 200057), 200151}


def test_codes_that_mean_two_things_have_both_names() -> None:
    names = ResponseCode.__members__
    assert names["POLLING_FULL"] is names["UPDATE_AND_CREATE_ACL_CONFIG_FAILED"]
    assert names["POLLING_TIMEOUT"] is names["DELETE_ACL_CONFIG_FAILED"]
    assert names["BROKER_NOT_EXIST"] is names["UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED"]


def test_languages_have_javas_numbers() -> None:
    assert [language.value for language in Language] == list(range(14))
    assert Language["GO"].value == 9
