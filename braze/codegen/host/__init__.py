"""The Python module that allocates, launches and returns."""
