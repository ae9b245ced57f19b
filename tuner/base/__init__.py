"""What everything stands on and what knows no GPU: results as values, files that processes share, worker processes."""
