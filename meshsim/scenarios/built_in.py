"""The scenarios that come with meshsim. Naming them imports none of them."""

from __future__ import annotations

_SUMMARIES = {
    "train_step": "A transformer's steps equal those of a single process: loss, gradient norm, weights.",
    "mesh_facts": "Every rank's place and group on every mesh axis are those of the plan.",
    "collectives": "Every collective on every mesh axis gives exactly what arithmetic says.",
    "data_sharding": "Data parallel ranks share out all samples, each once; other axes have the same.",
    "random_seeds": "Ranks draw the same random numbers along axes that hold copies, others elsewhere.",
    "grad_sync": "Gradients are the mean over all tokens of dp x cp, though ranks have unevenly many.",
    "grad_norm": "The gradient norm counts every element once, and clipping makes it what was asked.",
    "fsdp_step": "An FSDP2 or HSDP step equals that of a single process; replicas stay bit-identical.",
    "tensor_parallel": "A tensor and sequence parallel MLP with loss parallel equals the unsplit one.",
    "context_parallel_attention": "Causal ring attention over cp equals attention over the whole sequence.",
    "pipeline": "Pipeline schedules (GPipe, 1F1B, interleaved) give the unsplit model's loss and gradients.",
    "moe": "Tokens reach their experts over ep and come back; experts' gradients are summed over edp.",
    "redistribute": "DTensors with uneven shards keep every element from one placement to another.",
    "checkpoint": "A checkpoint saved from one way of sharding loads into others, to the bit.",
}

BUILT_IN: dict[str, tuple[str, str]] = {
    name: (f"meshsim.scenarios.{name}:{name}", summary) for name, summary in _SUMMARIES.items()
}
"""Name: (``module:name``, the first line of its docstring)."""
