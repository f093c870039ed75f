"""torch.fx graphs with a contract: specs, dialects and their verifier, passes, fakes.

Imports symbolic and base; ``torch_compat.py`` alone touches private names of PyTorch.
"""
