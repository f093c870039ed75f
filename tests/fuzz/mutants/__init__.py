"""Bugs seeded into a copy of braze, one at a time: which of them do the tests and the machines notice?"""
