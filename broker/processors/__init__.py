"""The request handlers, one class for each kind of request; ``table`` lists them all."""
