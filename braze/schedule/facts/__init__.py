"""What a schedule is made of, and what is known of its loops: records, accesses and the order that they force, domains, kernels' plans, sizes of work.

Imports no other room.
"""
