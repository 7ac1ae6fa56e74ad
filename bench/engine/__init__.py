"""The whole engine: decisions, shared prefixes, overlapped steps, calibration, the simulator."""
