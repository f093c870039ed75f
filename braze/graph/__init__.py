"""torch.fx graphs with a contract: specs, dialects and their verifier, passes, fakes.

Seven rooms, lowest first: private, sizes, operators, nodes, calls, rules, fakes. Each says in its docstring what lives there and what it
may import. Private names of PyTorch stand in ``private`` (pyproject.toml lists the few other files). Imports base.
"""
