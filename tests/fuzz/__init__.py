"""Targets that take any bytes at all: coverage-guided under ``make soak``, by hand elsewhere."""
