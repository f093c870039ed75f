"""Python programs: statements over classes, closures, generators and exceptions, and state that flips between calls."""
