"""From an author's edit to a patch set: what changed, as payloads, manifest and tests. Pure."""
