"""What is known of ATen's operators when they are called, and the operators of ours that graphs call (``braze::...``).

Imports no other room.
"""
