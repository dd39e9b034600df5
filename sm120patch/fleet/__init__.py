"""What the facts of many nodes say together: who differs, and why one is slower. Pure."""
