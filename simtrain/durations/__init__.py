"""An op and a hardware profile in, seconds out."""
