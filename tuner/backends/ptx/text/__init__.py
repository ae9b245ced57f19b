"""PTX as text: modules, entries, tables, calls."""
