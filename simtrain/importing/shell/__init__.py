"""Read launch scripts: the part of bash that most of them are written in, without running it."""
