"""Checks of Python's clients and of Kafka's own tools: a module for each of them."""
