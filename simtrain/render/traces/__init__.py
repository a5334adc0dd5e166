"""An iteration as a trace for Perfetto or Holistic Trace Analysis."""
