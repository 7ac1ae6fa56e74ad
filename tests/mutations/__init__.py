"""Edits that each break one feature, and the check that a test with the feature's mark notices.

``python -m tests.mutations`` applies each edit of the tables in a copy of the tree and runs the tests that carry the
edit's marks. An edit that they do not notice has survived.
"""
