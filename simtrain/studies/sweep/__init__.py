"""Sweeps: `grid` reads a sweep file; `run` computes, keeps and queries the points of its grid."""
