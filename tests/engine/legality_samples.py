"""Models, clusters and random recipes that the tests of legality, space and memory filter share."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from shardwise.engine.cluster import GPU, Cluster, Fabric, Nic
from shardwise.engine.model import Model
from shardwise.engine.recipe import (
    CP_COMM_TYPES,
    DISPATCHERS,
    DP_SHARDINGS,
    PRECISIONS,
    RECOMPUTE_MODULES,
    Recipe,
)

NIC = Nic(bandwidth_bytes_per_s=5e10, latency_s=5e-6)
SWITCH = Fabric(kind="switch", bandwidth_bytes_per_s=4.5e11, latency_s=1e-6, domain_size=8)
MESH = Fabric(kind="mesh", bandwidth_bytes_per_s=5.376e11, latency_s=1e-6, domain_size=8)


def gpu(name: str, vendor: str, architecture: str, memory_gib: int, fabric: Fabric, **peaks: float) -> GPU:
    return GPU.build(
        {
            "name": name, "vendor": vendor, "architecture": architecture,
            "memory_bytes": memory_gib << 30, "hbm_bandwidth_bytes_per_s": 3e12, "peak_flops": peaks,
            "vector_flops": 1e14, "compute_units": 132, "fabric": fabric, "nic": NIC,
        }
    )  # fmt: skip


H100 = gpu("h100", "nvidia", "hopper", 80, SWITCH, bf16=989e12, fp16=989e12, fp8=1979e12)
V100 = gpu("v100", "nvidia", "volta", 32, SWITCH, fp16=125e12)
MI355X = gpu("mi355x", "amd", "cdna4", 288, MESH, bf16=2.5e15, fp16=2.5e15, fp8=5e15, mxfp8=5e15, fp4=1e16)
MI250X = gpu("mi250x", "amd", "cdna2", 64, MESH, bf16=191e12, fp16=191e12)


def cluster(of: GPU, nodes: int) -> Cluster:
    return Cluster.build({"gpu": of, "num_nodes": nodes, "gpus_per_node": 8})


def llm(name: str, **changes: Any) -> Model:
    base = {
        "name": name, "hidden_size": 4096, "ffn_hidden_size": 14336, "num_attention_heads": 32,
        "num_query_groups": 8, "kv_channels": 128, "vocab_size": 32000, "num_layers": 32,
    }  # fmt: skip
    return Model.build({**base, **changes})


LLAMA = llm("llama-3-8b")
MIXTRAL = llm(
    "mixtral-8x22b", num_layers=56, hidden_size=6144, ffn_hidden_size=16384, num_attention_heads=48,
    num_experts=8, moe_router_topk=2, moe_ffn_hidden_size=16384,
)  # fmt: skip
DEEPSEEK = llm(
    "deepseek-v3", num_layers=61, hidden_size=7168, ffn_hidden_size=18432, num_attention_heads=128,
    num_query_groups=128, num_experts=256, moe_router_topk=8, moe_ffn_hidden_size=2048,
    moe_shared_expert_intermediate_size=2048, num_dense_layers=3, multi_latent_attention=True,
    q_lora_rank=1536, kv_lora_rank=512, qk_head_dim=128, qk_pos_emb_head_dim=64, v_head_dim=128,
    mtp_num_layers=1, vocab_size=129280,
)  # fmt: skip
GPT = llm(
    "gpt-3-like", num_layers=24, num_query_groups=32, gated_linear_unit=False, ffn_hidden_size=16384,
    position_embedding_type="learned_absolute", max_position_embeddings=2048, add_bias_linear=True,
)  # fmt: skip
BIASED_MOE = llm(
    "gpt-oss-like", num_layers=36, num_attention_heads=64, num_experts=32, moe_ffn_hidden_size=2880,
    moe_router_topk=4, add_bias_linear=True, window_size=128, window_attn_every=2, mtp_num_layers=2,
)  # fmt: skip
MODELS = (LLAMA, MIXTRAL, DEEPSEEK, GPT, BIASED_MOE)
CLUSTERS = (cluster(H100, 4), cluster(MI355X, 4), cluster(V100, 2), cluster(MI250X, 3))


def recipe(of: Model = MIXTRAL, on: Cluster = CLUSTERS[1], **changes: Any) -> Recipe:
    return Recipe.build({"model": of, "cluster": on, "gbs": 128, "seq_len": 4096, **changes})


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    """Any recipe that has a meaning; most are illegal, many in one way only."""
    of = draw(st.sampled_from(MODELS))
    changes: dict[str, Any] = {}
    small = st.sampled_from([1, 1, 1, 2, 2, 4, 8, 16, 3, 5, 6, 7])
    switches = (
        "sequence_parallel", "account_for_embedding_in_pipeline_split", "overlap_grad_reduce",
        "account_for_loss_in_pipeline_split", "overlap_param_gather", "tp_comm_overlap", "overlap_p2p_comm",
        "overlap_moe_expert_parallel_comm", "fp8_param_gather",
    )  # fmt: skip
    odd: dict[str, st.SearchStrategy[Any]] = {
        **dict.fromkeys(("tp", "pp", "vpp", "cp", "ep", "etp", "mbs"), small),
        **dict.fromkeys(switches, st.booleans()),
        "gbs": st.integers(1, 600),
        "seq_len": st.sampled_from([1, 100, 2048, 4096, 4098, 8192]),
        "num_layers_in_first_pipeline_stage": st.integers(1, 70),
        "num_layers_in_last_pipeline_stage": st.integers(1, 70),
        "dp_sharding": st.sampled_from(DP_SHARDINGS),
        "dp_shard_size": small,
        "pp_schedule": st.sampled_from(["1f1b", "gpipe"]),
        "precision": st.sampled_from(PRECISIONS),
        "optimizer": st.sampled_from(["adam", "sgd"]),
        "optimizer_state_dtype": st.sampled_from(["fp32", "bf16"]),
        "cp_comm_type": st.sampled_from(CP_COMM_TYPES),
        "moe_token_dispatcher": st.sampled_from(DISPATCHERS),
        "moe_expert_capacity_factor": st.sampled_from([1.0, 1.25]),
    }
    for name in draw(st.lists(st.sampled_from(sorted(odd)), max_size=9, unique=True)):
        changes[name] = draw(odd[name])
    changes["recompute"] = draw(st.sampled_from(["none", "selective", "full"]))
    if changes["recompute"] == "selective":
        changes["recompute_modules"] = draw(st.lists(st.sampled_from(RECOMPUTE_MODULES), min_size=1))
    if changes["recompute"] == "full":
        changes["recompute_method"] = draw(st.sampled_from(["uniform", "block"]))
        changes["recompute_num_layers"] = draw(st.integers(0, 70))
    return recipe(of, draw(st.sampled_from(CLUSTERS)), **changes)
