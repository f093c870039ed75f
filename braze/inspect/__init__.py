"""Tools that look at a compile: explain."""
