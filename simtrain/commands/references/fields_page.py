"""The reference page of a scenario's fields: the file that `simtrain show fields` writes."""

from simtrain.scenario.template import full_template

_HEAD = """\
# Fields of a scenario

`simtrain show fields -o every_field.yaml` writes this file: all sections and fields of a scenario,
with their meaning and their defaults. `simtrain show schema` prints the JSON schema that editors
use to complete fields.
"""


def page() -> str:
    """Return the page in Markdown."""
    return f"{_HEAD}\n```yaml\n{full_template().strip()}\n```\n"
