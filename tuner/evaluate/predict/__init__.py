"""What a config costs, without a device: by the work it declares and by its machine code."""
