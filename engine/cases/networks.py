"""The scale-out network of a case, where its source states it: one GPU's share of the node's NICs."""

from __future__ import annotations

import re

BITS_PER_BYTE = 8
_PLAUSIBLE_GBIT = (1.0, 1600.0)
"""Bounds of one GPU's share, Gb/s; a figure outside is not a network rate that training ran on."""

# Lower-case b only: "GB/s" in these texts is NVLink or PCIe.
_NICS = re.compile(r"(\d{1,2})\s*x\s*[^,;:+]*?(\d{2,4})\s*Gb/[sS]")
_RATE = re.compile(r"(\d{2,5})\s*Gb/[sS]")
_NDR = re.compile(r"\bNDR400\b")


def nic_bytes_per_s(interconnect: str | None, gpus_per_node: int) -> float | None:
    """Bytes/s of one GPU in one direction; None when the text does not say.

    ``4x100 Gb/s`` are a node's NICs (of several groups the fastest, the others being storage and
    management); ``800 Gb/s per node`` and anything from 1,000 Gb/s on is a node's total; a rate next to the
    NVLink or ``per GPU`` is one GPU's. A bare rate is ambiguous and ignored.
    """
    text = (interconnect or "")[:1000]
    groups = [int(count) * int(rate) for count, rate in _NICS.findall(text)]
    rate = _RATE.search(text)
    if groups:
        gbit = max(groups) / gpus_per_node
    elif rate and ("per node" in text or int(rate.group(1)) >= 1000):
        gbit = int(rate.group(1)) / gpus_per_node
    elif rate and re.search(r"per GPU|NVLink", text):
        gbit = float(rate.group(1))
    elif _NDR.search(text):
        gbit = 400.0
    else:
        return None
    low, high = _PLAUSIBLE_GBIT
    return gbit * 1e9 / BITS_PER_BYTE if low <= gbit <= high else None
