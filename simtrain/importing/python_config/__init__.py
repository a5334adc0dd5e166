"""Read the configs that Python files of other tools build, as text: nothing is executed."""
