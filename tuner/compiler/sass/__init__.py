"""Machine code read: instructions, loops and how long a warp waits."""
