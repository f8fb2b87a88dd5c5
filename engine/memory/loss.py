"""Logits and loss: their peak, and what each micro-batch in flight keeps of them."""

from __future__ import annotations

import numpy as np

from shardwise.engine.lowering import Lowered
from shardwise.engine.precisions import HALF
from shardwise.engine.table import Bools, Floats, Table

_MEGATRON_LOSS, _ENGINE_LOSS = 6.0, 4.0
"""Bytes per logit. 16-bit logits and their FP32 copy, which becomes the softmax and the gradient in place
(``tensor_parallel/cross_entropy.py``); fusing it natively saves passes, not the copy (``fusions/
fused_cross_entropy.py``); Transformer Engine's 16-bit gradient overwrites the logits."""

_TORCH_LOSS, _HELD_LOGITS = 12.0, 6.0
"""``F.cross_entropy(logits.float())``: FP32 log-softmax kept for its backward, the loss's FP32 gradient
by it, and the FP32 gradient of the logits (ATen ``nll_loss_backward``, ``_log_softmax_backward_data``).
A training loop that does not delete them, as torchtitan's does, holds the logits and their FP32 copy."""

_LINEAR_CHUNKS = 8
"""Chunks in which a loss fused with the output head passes through the tokens (torchtune's default)."""

_NANOTRON_LOSS, _NANOTRON_KEPT = 10.0, 4.0
"""16-bit logits, their FP32 copy, and the FP32 softmax that ``_ShardedCrossEntropy`` saves
(``parallel/tensor_parallel/functional.py``). The last micro-batch's FP32 logits outlive it."""


def logits_and_loss(low: Lowered) -> Floats:
    """Logits, loss and their gradients at their peak, of one micro-batch, all heads (n,)."""
    table = low.table
    several = table.num_microbatches > 1
    # torchtitan compiles its loss with the model.
    eager = table.is_word("framework", "torchtitan") & ~table.torch_compile
    eager = eager | table.is_word("framework", "deepspeed", "pytorch")
    held = np.where(table.is_word("framework", "pytorch"), _HELD_LOGITS, 0.0)
    unfused = np.where(eager, _TORCH_LOSS + held, _MEGATRON_LOSS)
    nanotron = _NANOTRON_LOSS + np.where(several, _NANOTRON_KEPT, 0.0)
    unfused = np.where(table.is_word("framework", "nanotron"), nanotron, unfused)
    fused = table.cross_entropy_fusion
    native = _native(table)
    of_fused = np.where(native, _MEGATRON_LOSS, _ENGINE_LOSS)
    linear = table.is_word("cross_entropy_fusion_impl", "linear")
    of_fused = np.where(linear, _TORCH_LOSS / _LINEAR_CHUNKS, of_fused)
    # A multi-token-prediction layer's softmax waits for its backward while the main head runs.
    waiting = table.model.mtp_num_layers * np.where(fused & ~native, HALF, 4.0)
    vocab = low.vocab * np.where(table.loss_parallel, 1, table.tp)
    return np.asarray(low.tokens * vocab * (np.where(fused, of_fused, unfused) + waiting))


def _native(table: Table) -> Bools:
    """Whether a fused loss would be Megatron's own (n,)."""
    core = table.is_word("framework", "megatron-core")
    return np.asarray(core & table.is_word("cross_entropy_fusion_impl", "native"))


def kept_loss(low: Lowered) -> Floats:
    """What one micro-batch's loss keeps until its backward: the FP32 softmax, or where a fused kernel has
    made the gradient already, that in 16 bits (n,)."""
    table = low.table
    native = _native(table)
    size = np.where(table.cross_entropy_fusion & ~native, HALF, 4.0)
    linear = table.cross_entropy_fusion & table.is_word("cross_entropy_fusion_impl", "linear")
    return np.asarray(np.where(linear, 0.0, size) * low.tokens * low.vocab)
