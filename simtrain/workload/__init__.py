"""What a rank computes, saves and sends: blocks, and the passes that are derived from them.

A block records its forward pass on a tape (`tape`). From the recording follow, file by file:

- `issue`: ops in issue order, with the collectives that they wait for (`Segment`);
- `segments`: what a block recomputes and saves for that; its forward and its backward pass;
- `recompute`: which blocks of a chunk are recomputed together;
- `passes`: the segments of a pass of a chunk, one block after the other;
- `sharding`: the collectives of ZeRO between them.
"""
