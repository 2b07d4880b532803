"""What brokers' answers mean and how requests to them look: pure, shared with Spark's connector."""
