"""Eager, torch.compile and braze side by side: ``python -m benchmarks models|overhead|compile_time``."""
