"""Tensor parallelism on torch.distributed: one model on several processes, a part of each layer in each of them.

    every rank    shards.py    a part of the specification, and its part of each weight
                  source.py    the files, read part by part
                  executor.py  the CPU executor over those parts; sums over the ranks after ``out`` and ``down``
                  device.py    the CUDA executor over those parts; NCCL's sums at the same places
                  rows.py      logits of a part of the vocabulary; small collectives make them those of the whole
    rank 0        lead.py      has the engine: it plans and packs, and sends each batch to the other ranks
    the others    lead.py      receive a batch, compute it, and wait for the next one
                  group.py     the collectives; an error of one is the end of the group

All collectives go through one group of torch.distributed on gloo, which has a time limit.
"""
