"""Recall handles."""

from __future__ import annotations

import base64
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.message import recall_handle
from remoting.protocol.message.recall_handle import RecallHandle

_words = st.text("abcXYZ019_-%é", min_size=1, max_size=40)


@given(st.builds(RecallHandle, _words, _words, _words, _words))
def test_a_handle_is_decoded_as_it_was_encoded(handle: RecallHandle) -> None:
    assert recall_handle.decode(handle.encode()) == handle
    assert recall_handle.decode(handle.encode().rstrip("=")) == handle


@given(st.text(max_size=200))
def test_any_text_is_a_handle_or_refused(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert len(recall_handle.decode(text)) == 4


@pytest.mark.parametrize("text", ["v2 t b 1 u", "v1 t b 1", "", "v1"])
def test_another_version_or_too_few_fields_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="recall handle is invalid"):
        recall_handle.decode(base64.urlsafe_b64encode(text.encode()).decode())
