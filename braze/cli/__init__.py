"""The command ``braze``: demo, explain, env."""
