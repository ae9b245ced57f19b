"""What one config is worth: right, fast by its work, fast on a device."""
