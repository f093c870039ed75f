"""From a call to a variant: sessions, sites, attempts, the stance, and what is said of recompiles.

Imports all rooms of capture.
"""
