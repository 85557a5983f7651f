"""LIBERO-PRO's objects: LIBERO's own in another colour or size, in the categories that its task files name.

Imports LIBERO: import it only after `runtime.configure`.
"""

from __future__ import annotations

# category → LIBERO's category whose behaviour (rotation at placement, drawers, knob) it has in LIBERO-PRO's
# envs/objects; a bottle and a carton are rotated like a can there.
LIKE = {
    "bigger_akita_black_bowl": "akita_black_bowl",
    "bigger_alphabet_soup": "alphabet_soup",
    "black_bowl": "akita_black_bowl",
    "blue_ketchup": "alphabet_soup",
    "brown_rack": "wine_rack",
    "green_bbq_sauce": "bbq_sauce",
    "green_butter": "butter",
    "green_chocolate_pudding": "chocolate_pudding",
    "red_basket": "basket",
    "red_cream_cheese": "cream_cheese",
    "red_salad_dressing": "salad_dressing",
    "white_bottle": "wine_bottle",
    "yellow_cabinet": "wooden_cabinet",
    "yellow_milk": "alphabet_soup",
    "yellow_moka_pot": "moka_pot",
    "yellow_plate": "plate",
    "yellow_stove": "flat_stove",
    "yellow_tomato_sauce": "tomato_sauce",
}


def register() -> None:
    """Register the categories with LIBERO; idempotent."""
    from libero.libero.envs.base_object import OBJECTS_DICT, VISUAL_CHANGE_OBJECTS_DICT

    for category, like in LIKE.items():
        if category not in OBJECTS_DICT:
            OBJECTS_DICT[category] = _category(category, OBJECTS_DICT[like])
            if like in VISUAL_CHANGE_OBJECTS_DICT:
                VISUAL_CHANGE_OBJECTS_DICT[category] = OBJECTS_DICT[category]


def _category(category: str, like: type) -> type:
    """Return a subclass of LIBERO's class `like` with the files of `category`, named as LIBERO expects."""

    def __init__(self, name=category, obj_name=category, **options):
        like.__init__(self, name=name, obj_name=obj_name, **options)

    return type(category.title().replace("_", ""), (like,), {"__init__": __init__, "__module__": __name__})
