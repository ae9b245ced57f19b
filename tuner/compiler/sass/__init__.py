"""Analysis of machine code: instructions, loops and stalls."""
