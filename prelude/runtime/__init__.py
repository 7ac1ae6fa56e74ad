"""The life of requests and steps: inbox, step loop, delivery, failures, statistics. No text enters."""
