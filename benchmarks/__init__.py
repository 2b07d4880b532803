"""What PocketMQ's figures are measured with; nothing here runs in the tests."""
