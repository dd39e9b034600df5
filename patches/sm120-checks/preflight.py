"""Let SGLang's workspace preflight pass without multicast (`layers/flashinfer_comm_fusion.py`).

From 0.5.11 the preflight rounds each buffer to the multicast granularity before it tries to
allocate it. On a device without multicast the driver refuses to name one, every rank votes SKIP and
the fusion stays off for good, although the TRT-LLM workspace is unicast. Where the device has no
multicast the rounding is left out; where it has, and for every driver error, nothing changes.
"""

from __future__ import annotations

from sm120patch.codemod import Codemod, Function, Site, either, guarded, has, insert_after, lacks

SIZES = Function("_flashinfer_trtllm_workspace_allocation_sizes")

BUFFERS = """
buffer_sizes = (
    ceil_align(size, 1 << 21) for size in (buffer_size, flag_size, lamport_buffer_size)
)
"""
QUERY = """
err, multicast_supported = cuda_driver.cuDeviceGetAttribute(
    cuda_driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED,
    prop.location.id,
)
if err != cuda_driver.CUresult.CUDA_SUCCESS:
    raise RuntimeError(
        "cuDeviceGetAttribute failed for FlashInfer "
        f"workspace preflight: {err}"
    )
"""
ALLOCATION = "allocation_size = ceil_align(buffer_size + signal_pad_size, alloc_granularity)"
SKIP = """
if not multicast_supported:
    # The TRTLLM workspace is unicast, multicast would only round it up further.
    allocation_sizes.append(allocation_size)
    continue
"""

CODEMOD = Codemod(
    sites=(
        Site(SIZES, insert_after(BUFFERS, QUERY)),
        Site(SIZES, insert_after(ALLOCATION, SKIP)),
    ),
    after=(
        guarded(SIZES, "cuMulticastGetGranularity", by=("multicast_supported",)),
        either(
            lacks(SIZES, "cuda_driver.cuMulticastGetGranularity"),
            has(SIZES, "allocation_sizes.append(allocation_size)", 2),
        ),
    ),
)
