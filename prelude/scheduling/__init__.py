"""The plan of a step: queues, policies, budgets, prefix cache, leases, packing. No text, thread, clock or device
enters."""
