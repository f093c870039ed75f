"""Modules that are trained, frozen, copied and loaded between calls: parameters, statistics, hooks, optimizers."""
