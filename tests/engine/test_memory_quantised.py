"""Copies of quantised weights, and what else low precision changes in memory."""

from __future__ import annotations

from typing import Any

import pytest
from recipes import recipe

from shardwise.engine.lowering import lower
from shardwise.engine.memory import report
from shardwise.engine.memory.loss import logits_and_loss
from shardwise.engine.table import Table

_LLAMA: dict[str, Any] = {"model": "llama-3-8b", "gbs": 64, "seq_len": 4096, "cross_entropy_fusion": True}
_LINEARS = 8030261248 - 2 * 128256 * 4096
"""Parameters of llama-3-8b that its linears and norms hold."""


def _copies(**changes: Any) -> float:
    """Bytes of quantised weights over those of one FP8 byte per linear parameter."""
    r = recipe({**_LLAMA, **changes})
    full = report(r.with_(precision="bf16", fp8_param_gather=False)).stages[0].items["weights"]
    return (report(r).stages[0].items["weights"] - full) / _LINEARS


@pytest.mark.parametrize(
    ("cluster", "precision", "bytes_added"),
    [
        ("h100:1x8", "fp8-tensorwise", 2.0),
        ("h100:1x8", "fp8-blockwise", 2 * 1.03125),
        ("mi355x:1x8", "fp8-delayed", 2.0),
        ("b200:1x8", "fp8-delayed", 1.0),
        ("b200:1x8", "mxfp8", 2 * 1.03125),
    ],
)
def test_a_copy_per_layout_that_the_gpu_needs(cluster: str, precision: str, bytes_added: float) -> None:
    assert _copies(cluster=cluster, precision=precision) == pytest.approx(bytes_added, rel=1e-3)
    without_16_bits = _copies(cluster=cluster, precision=precision, fp8_param_gather=True)
    assert without_16_bits == pytest.approx(bytes_added - 2.0, abs=1e-3)


def test_fsdp_keeps_no_quantised_copies() -> None:
    assert _copies(cluster="h100:1x8", precision="fp8-tensorwise", dp_sharding="fsdp") == 0.0


def test_every_prediction_head_has_logits() -> None:
    base = {"model": "deepseek-v3", "cluster": "b200:32x8", "ep": 64, "pp": 4, "gbs": 1024, "seq_len": 4096}
    r = recipe(base, recompute="full")
    loss = logits_and_loss(lower(Table.of([r])))[0]
    # 16 and 32 bits of the main head's, and the softmax of the other's.
    assert loss == pytest.approx((6 + 4) * r.mbs * r.seq_len * 129280, rel=0.01)
    assert report(r).stages[-1].items["temporary"] > loss


def test_user_buffers_cost_memory() -> None:
    r = recipe({**_LLAMA, "cluster": "h100:1x8", "tp": 4})
    plain, overlapped = (
        report(r.with_(tp_comm_overlap=on)).stages[0].items["communication"] for on in (False, True)
    )
    assert overlapped - plain == 10 * r.mbs * r.seq_len * r.model.hidden_size * 2
