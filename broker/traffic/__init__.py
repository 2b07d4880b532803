"""Traffic: counters, rates and totals of topics and groups, and the quotas of accounts."""
