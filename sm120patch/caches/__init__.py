"""Caches that outlive a change of source: who depends on a changed file, put away, put back.

Nothing is ever deleted except cached bytecode, which Python recreates.
"""
