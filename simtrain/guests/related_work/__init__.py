"""A guest: what only papers of related systems have, and the page that reproduces them asks for."""
