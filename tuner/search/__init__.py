"""The search for the best config: tries distributed over implementations, the final race, and the resulting record."""
