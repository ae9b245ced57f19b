"""Results of searches as plain values: verdicts, attempts, final races, records, and their ranking."""
