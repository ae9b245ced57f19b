"""What each instruction of the PTX ISA does, a family a module."""
