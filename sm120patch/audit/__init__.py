"""The audit: which environments a host holds, and how each differs from what upstream shipped.

Reads disk only, and runs no code that it finds there. `findings` holds what an audit answers.
"""
