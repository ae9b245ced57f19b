"""What knows no GPU and what every layer uses: plain fields, files that processes share, worker processes."""
