"""The tasks of `./lab` in their groups. Each flag is declared once, with its help (`vlalab.tasks.flags`)."""

from vlalab.tasks import admin, data, evaluate, learn, machines, serve
from vlalab.tasks.task import LabTask

# The order is the one of the list: what a day's work begins with comes first.
GROUPS = {
    module.__name__.rpartition(".")[2]: [var for var in vars(module).values() if isinstance(var, LabTask)]
    for module in (evaluate, data, serve, learn, admin, machines)
}
