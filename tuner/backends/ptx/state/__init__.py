"""What a launch holds while it runs: registers, memories, visibility."""
