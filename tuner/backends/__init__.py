"""Where kernels run: their source on the emulator, their PTX on the CPU, their machine code on a GPU."""
