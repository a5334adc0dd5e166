"""Data from which a page computes an iteration's time on faster and slower clusters.

A slider multiplies one resource of the cluster by a factor of a fixed list. `grid` computes the
duration of each distinct op and transfer for all factors that can change it. `data` adds the tasks
of the passes and of the iteration. From these the page computes the longest path with the same
algorithm as the engine, so it needs no formula for durations.
"""
