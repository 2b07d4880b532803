"""What the user of a Spark query can set: names, values, and errors that help."""
