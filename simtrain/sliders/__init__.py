"""What an iteration takes on faster and slower clusters, as data from which a page computes it.

A slider multiplies one resource of the cluster by one of a few factors. `grid` computes the
duration of each distinct op and transfer at the factors that can change it. `data` adds the tasks
of the passes and of the iteration. From these a page finds the longest path again, with the same
loops as the engine, so it needs no formula of a duration.
"""
