"""The engine at work: inbox, steps, delivery, and what is seen of them from outside."""
