"""What turns a captured graph into a callable: a registry of named backends and the ones that come with braze.

A backend takes the torch-level ``torch.fx.GraphModule`` of one captured region and its example inputs (fake
tensors, symbolic ints) and returns a callable over real inputs that returns the sequence of outputs. A returned
callable with a true attribute ``boxed`` gets all inputs as one sequence. Imports pipeline, aot, graph and base.
"""
