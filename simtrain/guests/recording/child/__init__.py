"""The process that runs a user's program and records a step of it. Only this process has torch.

`patches` lists what is replaced in torch, and `torch_internals` each private place that is used.
"""
