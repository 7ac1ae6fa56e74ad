"""Admission: a task becomes token ids, a readout and a budget, once, before it holds anything. No queue and no
weight enters."""
