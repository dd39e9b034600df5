"""Whether there is an NVIDIA driver to ask. Loads nothing: most commands ask on hosts without."""

import os

DEVICES = ("/dev/nvidiactl", "/dev/dxg")
"""The second one is that of Windows' subsystem for Linux."""


def is_present() -> bool:
    """Tell whether a device of the driver is there."""
    return any(map(os.path.exists, DEVICES))
