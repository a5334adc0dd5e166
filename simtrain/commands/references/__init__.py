"""Reference pages made from the program itself: commands, errors, fields and keys of JSON."""
