"""Backends that run kernels: the emulator (source), the PTX interpreter (PTX) and a GPU (machine code)."""
