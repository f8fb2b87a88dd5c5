"""Bytes of tensor storages alive, as torch's operators make and drop them; real or fake tensors alike."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveStorages(TorchDispatchMode):  # type: ignore[misc]
    """Counts every storage that an operator returns, once, from then until it dies."""

    def __init__(self, ignored: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        self.now = 0
        """Bytes alive."""
        self.peak = 0
        """The most since the last :meth:`restart`."""
        self._known = {_key(tensor) for tensor in ignored}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._meet(leaf)
        return result

    def restart(self) -> None:
        """Forget the peak."""
        self.peak = self.now

    def _meet(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = _key(tensor), storage.nbytes()
        if key in self._known:
            return
        self._known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._part, key, size)

    def _part(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


def _key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
