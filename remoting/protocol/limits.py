"""The limits of the protocol, each with its reason. Sizes are in bytes."""

from __future__ import annotations

from typing import Final

MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
"""A whole frame with its length field (remoting: ``com.rocketmq.remoting.frameMaxLength``)."""

MAX_HEADER_BYTES: Final = 1024 * 1024
"""A frame's header. Real ones stay under 100 KiB (32 KiB of properties, escaped)."""

MAX_EXT_FIELDS: Final = 512
"""Ext fields of one header, repeats included; the largest real header has about 30."""

MAX_JSON_DEPTH: Final = 64
"""Nesting levels of a JSON header or body; the deepest real body has 7."""

MAX_JSON_NODES: Final = 2_000_000
"""Values in one JSON body: a registration of 100,000 topics has about 900,000."""

MAX_INFLATED_CONTROL_BYTES: Final = 4 * MAX_FRAME_BYTES
"""A compressed control body (broker registration) after decompression."""

MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
"""A message's body, and the sum of a batch's elements (``maxMessageSize``)."""

MAX_INFLATED_MESSAGE_BYTES: Final = 4 * MAX_MESSAGE_BYTES
"""A compressed message's body after decompression."""

MAX_PROPERTIES_BYTES: Final = 32767
"""A message's properties text: its length is a signed 16-bit number on disk."""

MAX_TOPIC_LENGTH: Final = 127
"""Characters of a topic's name: its length is a signed byte on disk."""

MAX_GROUP_LENGTH: Final = 255
"""Characters of a group's name (cf. Validators.CHARACTER_MAX_LENGTH)."""

MAX_BATCH_MESSAGES: Final = 32_768
"""Messages of one batch body. Only a batch of nearly empty messages reaches it."""
