"""The command ``prelude``, one file a command. Nothing imports this folder."""
