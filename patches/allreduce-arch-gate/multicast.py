"""Require multicast only where it is used (`flashinfer/comm/mnnvl.py`, 0.6.0 to 0.6.9).

`SymmDeviceMemory` refuses a device without multicast, and asks the driver for the multicast
granularity, even when it is created with `enable_multicast=False`. The only caller that does so is
`trtllm_create_ipc_workspace_for_all_reduce_fusion`: the workspace that SGLang 0.5.10 and 0.5.11 ask
for. With multicast on nothing changes, and such a device is still refused. Without it the buffers
are rounded and aligned to the allocation granularity alone, as FlashInfer does from 0.6.15.
"""

from __future__ import annotations

from sm120patch.codemod import Codemod, Function, Site, guarded, has, insert_after, replace

INIT = Function("SymmDeviceMemory.__init__")
SIZES = Function("SymmDeviceMemory._get_allocation_prop")
GUARDS = ("enable_multicast", "_enable_multicast")

REMEMBER = "self._enable_multicast = enable_multicast"
UNSUPPORTED = "multicast_supported == 0"
ALLOCATION = "self.allocation_size = round_up(buf_size + self.SIGNAL_PAD_SIZE, alloc_granularity)"
UNICAST = """
if not self._enable_multicast:
    # No multicast object will be bound, so there is none to size for
    self._mc_granularity = alloc_granularity
    return allocation_prop, None
"""

CODEMOD = Codemod(
    sites=(
        Site(INIT, insert_after("self.buf_size = buf_size", REMEMBER)),
        Site(INIT, replace(UNSUPPORTED, f"enable_multicast and {UNSUPPORTED}")),
        Site(SIZES, insert_after(ALLOCATION, UNICAST)),
    ),
    after=(
        has(INIT, REMEMBER),
        guarded(INIT, "does not support multicasting", by=GUARDS),
        guarded(SIZES, "CUmulticastObjectProp", by=GUARDS),
        guarded(SIZES, "cuMulticastGetGranularity", by=GUARDS),
        has(SIZES, "self._mc_granularity = alloc_granularity"),
    ),
)
