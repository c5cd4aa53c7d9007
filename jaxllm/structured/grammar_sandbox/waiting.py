"""Who is next, when several clients ask for more than can be done at a time."""

from collections import OrderedDict, deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class TurnQueue(Generic[Item]):
    """A queue in which owners take turns; the items of one keep their order. Not thread-safe."""

    def __init__(self) -> None:
        self._by_owner: OrderedDict[str, deque[Item]] = OrderedDict()

    def __len__(self) -> int:
        """Items of all owners."""
        return sum(map(len, self._by_owner.values()))

    def waiting(self, owner: str) -> int:
        """Items of this owner."""
        return len(self._by_owner.get(owner, ()))

    def put(self, owner: str, item: Item) -> None:
        """Add an item after the others of its owner."""
        self._by_owner.setdefault(owner, deque()).append(item)

    def put_back(self, owner: str, item: Item) -> None:
        """Add an item that was taken before, in front of all."""
        self._by_owner.setdefault(owner, deque()).appendleft(item)
        self._by_owner.move_to_end(owner, last=False)

    def take(self) -> Item | None:
        """The next item, of the owner that has waited longest since its last."""
        if not self._by_owner:
            return None
        owner, items = self._by_owner.popitem(last=False)
        item = items.popleft()
        if items:
            self._by_owner[owner] = items
        return item

    def take_all(self) -> list[Item]:
        """All items, in no order."""
        items = [item for each in self._by_owner.values() for item in each]
        self._by_owner.clear()
        return items

    def remove(self, owner: str, item: Item) -> None:
        """Take an item out, if it is there."""
        items = self._by_owner.get(owner)
        if items is not None and item in items:
            items.remove(item)
            if not items:
                del self._by_owner[owner]
