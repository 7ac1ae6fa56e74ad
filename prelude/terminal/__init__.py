"""Text in a terminal: bars, tables, arguments of commands. Nothing here computes the values shown."""
