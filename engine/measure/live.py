"""Bytes of tensor storages alive, as torch's operators make and drop them; real or fake tensors alike."""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveStorages(TorchDispatchMode):
    """Counts every storage that an operator returns, once, from then until it dies."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        """Bytes alive."""
        self.peak = 0
        """The most since the last :meth:`restart`."""
        self.where = ""
        """The backward function, or the operator of a forward pass, that made the peak."""
        self._sizes: Counter[int] = Counter()
        self._ignored: set[int] = set()

    def __enter__(self) -> LiveStorages:
        """Storages resized by hand pass no operator (``CheckpointWithoutOutput`` does it)."""
        plain = torch.UntypedStorage.resize_

        def resize(storage: Any, size: int) -> Any:
            result = plain(storage, size)
            self._hold(storage, "resize_")
            return result

        self._resizing = mock.patch.object(torch.UntypedStorage, "resize_", resize)
        self._resizing.start()
        super().__enter__()
        return self

    def __exit__(self, *reason: Any) -> None:
        super().__exit__(*reason)
        self._resizing.stop()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._hold(leaf.untyped_storage(), func)
        return result

    def restart(self) -> None:
        """Forget the peak."""
        self.peak, self.where = self.now, ""

    def book(self, size: int, peak: int = 0) -> None:
        """Bytes that come (or go, below 0) without being run, ``peak`` above now on the way."""
        self.peak = max(self.peak, self.now + peak)
        self.now += size

    def ignore(self, tensor: torch.Tensor) -> None:
        """Count this tensor's storage no more."""
        key = int(tensor.untyped_storage()._cdata)
        self._ignored.add(key)
        self.now -= self._sizes.pop(key, 0)

    def _hold(self, storage: Any, func: Any) -> None:
        key, size = int(storage._cdata), int(storage.nbytes())
        # A storage that grew (or was emptied by ``resize_``) counts anew.
        known = self._sizes.get(key)
        if known == size or key in self._ignored:
            return
        if known is None:
            weakref.finalize(storage, self._part, key)
        self._sizes[key] = size
        self.now += size - (known or 0)
        if self.now > self.peak:
            self.peak = self.now
            node = torch._C._current_autograd_node()
            self.where = node.name() if node is not None else str(func)

    def _part(self, key: int) -> None:
        self.now -= self._sizes.pop(key, 0)
