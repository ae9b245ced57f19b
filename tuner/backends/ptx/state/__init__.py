"""The state of a launch: registers, memories, visibility."""
