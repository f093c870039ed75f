"""torch.fx graphs with a contract: specs, dialects and their verifier, passes, fakes.

Imports base. Private names of PyTorch stand in ``torch_*.py`` and ``holders.py`` (pyproject.toml lists the few other files).
"""
