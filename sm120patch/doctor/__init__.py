"""Why a set can or cannot work on this host: checks, topology, outlook of sets, idle flags."""
