"""A guest: a suite that puts the family of `cooling.py` beside the paper's row."""

from scse import Arm, Column, Suite, register

register(
    Suite(
        "cooling",
        "A guest beside the paper's row",
        arms=(
            Arm("scse", "scse", "mini", "SCSE", seeds=(0,)),
            Arm("cooled", "cooled", "mini", "SCSE, cooled", seeds=(0,)),
        ),
        columns=(Column("T=2", depth=2),),
    )
)
