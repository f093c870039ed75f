"""Random tensor programs, compiled and eager: everything that a caller can see is compared."""
