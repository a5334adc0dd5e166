"""Long and short names of strategies in figures."""

from simtrain.paper.layer_work import ALONE
from simtrain.paper.models import BASELINE, PRESENT

NAMES = {
    ALONE: "no parallelism",
    BASELINE: "tensor parallel (baseline)",
    "sequence": "sequence parallel",
    "selective": "selective recompute",
    PRESENT: "sequence parallel and selective recompute (present work)",
    "full": "full recompute",
}
SHORT = {BASELINE: "baseline", "full": "full\nrecompute", PRESENT: "present\nwork"}
