"""What single functions of Python, NumPy and PyTorch mean while tracing: one file a family.

Imports all rooms before it: facts, outside, guards, graph, python and finish.
"""
