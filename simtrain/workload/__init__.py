"""What a rank computes, saves and sends: blocks, and the passes that are derived from them.

A block records its forward pass on a tape (`tape`). From the recording follow, file by file:

- `issue`: ops in issue order, with the collectives that they wait for (`Segment`);
- `saved_ops`: what a block recomputes, and the tensors that it saves for that;
- `segments`: the forward pass, the recompute and the backward pass of a block;
- `recompute`: which blocks of a chunk are recomputed together;
- `record`: the segments of a pass of a chunk (`passes`), one block after the other;
- `sharding`: the collectives of ZeRO between them.
"""
