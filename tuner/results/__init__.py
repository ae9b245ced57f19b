"""What searches produce: verdicts, attempts, final races, records, and the order among them. Plain values."""
