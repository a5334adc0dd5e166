"""How a medium shows a result: terminal, pages, files of pictures and traces."""
