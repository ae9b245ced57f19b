"""What a config takes on a device: samples, what disturbs them, and when they are enough."""
