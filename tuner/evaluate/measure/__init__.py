"""Timing of configs on a device: samples, disturbances, and when to stop."""
