"""What single functions of Python, NumPy and PyTorch mean while tracing: one file a family.

Imports facts, state, outside, graph, python and finish.
"""
