"""The engine without text: inbox, steps, delivery, statistics."""
