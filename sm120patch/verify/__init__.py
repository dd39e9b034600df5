"""Verification: run the server in two arms, measure both, decide by interval.

Starts and stops the profile's server and talks HTTP to it; writes only its log.
"""
