"""What a launch holds while it runs: registers, memories, who may see what."""
