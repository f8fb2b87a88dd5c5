"""The memory of logits and loss against the storages that torch's own operators keep alive."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
from recipes import LLAMA, recipe

from shardwise.engine.lowering import lower
from shardwise.engine.memory.loss import logits_and_loss
from shardwise.engine.table import Table

_TOKENS, _VOCAB, _HIDDEN = 256, 4096, 8


def _peak_bytes(torch: Any, *, hold: bool) -> int:
    """Peak bytes of storages made by output head, FP32 copy, cross-entropy and their backward."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Live(TorchDispatchMode):  # type: ignore[misc]
        now = peak = 0
        known: set[int] = set()  # noqa: RUF012

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            for tensor in tree_leaves(out):
                if isinstance(tensor, torch.Tensor):
                    self.meet(tensor.untyped_storage())
            return out

        def meet(self, storage: Any) -> None:
            key, size = storage._cdata, storage.nbytes()
            if key not in self.known:
                self.known.add(key)
                self.now += size
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self.leave, key, size)

        def leave(self, key: int, size: int) -> None:
            self.known.discard(key)
            self.now -= size

    hidden = torch.randn(_TOKENS, _HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(_VOCAB, _HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    labels = torch.randint(0, _VOCAB, (_TOKENS,))
    with Live() as live:
        logits = torch.nn.functional.linear(hidden, weight)
        whole = logits.float()
        loss = torch.nn.functional.cross_entropy(whole, labels)
        if not hold:
            del logits, whole
        loss.backward()
    return int(live.peak)


@pytest.mark.parametrize(
    ("framework", "hold"), [("torchtitan", False), ("deepspeed", False), ("pytorch", True)]
)
def test_an_eager_loss_peaks_where_torch_does(framework: str, hold: bool) -> None:
    torch: Any = pytest.importorskip("torch", reason="runs torch's own loss")
    r = recipe(LLAMA, framework=framework)
    low = lower(Table.of([r]))
    ours = float(logits_and_loss(low)[0] / (low.tokens[0] * low.vocab[0])) * _TOKENS * _VOCAB
    # Beyond the logits only per-token and per-weight tensors: the labels, the loss, the weight's gradient.
    assert 0 <= _peak_bytes(torch, hold=hold) - ours <= 2 * _VOCAB * _HIDDEN + 64 * _TOKENS
