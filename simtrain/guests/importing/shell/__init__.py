"""Read launch scripts of bash without running them: `shfmt` parses, this package evaluates."""
