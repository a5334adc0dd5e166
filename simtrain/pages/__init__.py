"""What commands print: results as tables and text for a terminal."""
