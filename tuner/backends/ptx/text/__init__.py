"""PTX parsing: modules, entries, tables, calls."""
