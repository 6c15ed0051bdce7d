"""Layout of sequences that follow each other in one row without padding."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from rlforge.types import value

#: Pairs of query and key that take as long as a call of an attention kernel, on a CPU.
_CALL = 500


@value
class Segment:
    """Tokens ``begin`` to ``end`` of row number ``row``, and of all rows equal up to there.

    ``parent`` is the index of the segment it continues; None: it begins the row.
    """

    row: int
    begin: int
    end: int
    parent: int | None = None


@dataclass(frozen=True, kw_only=True)
class Segments:
    """Rows as segments, parents before children.

    ``ends`` holds the last segment of each row; equal rows have the same one.

    Example: two rows of three tokens, equal but for the last one.
        >>> stem = Segment(row=0, begin=0, end=2)
        >>> ends = [Segment(row=n, begin=2, end=3, parent=0) for n in range(2)]
        >>> made = Segments(segments=(stem, *ends), ends=(1, 2))
        >>> [made.places[end].tolist() for end in made.ends]
        [[0, 1, 2], [0, 1, 3]]
    """

    segments: tuple[Segment, ...]
    ends: tuple[int, ...]

    @cached_property
    def sizes(self) -> np.ndarray:
        return np.array([segment.end - segment.begin for segment in self.segments])

    @cached_property
    def places(self) -> list[np.ndarray]:
        """Positions, in order, of each segment's tokens and of those it continues."""
        places: list[np.ndarray] = []
        starts = np.cumsum(self.sizes) - self.sizes
        for segment, start, size in zip(self.segments, starts, self.sizes, strict=True):
            own = np.arange(start, start + size)
            before = [] if segment.parent is None else [places[segment.parent]]
            places.append(np.concatenate([*before, own]))
        return places


@value
class Block:
    """``count`` segments, all padded to the same numbers of queries and of keys.

    mask: bool [count or 1, 1, queries, keys], the keys that a query attends to; None: those up to
    its own place where ``causal``, else all.
    """

    count: int
    queries: int
    keys: int
    mask: Tensor | None
    causal: bool


@value
class Blocks:
    """Segments of a row in blocks, each of which is one call of an attention kernel.

    Attributes:
        queries, keys: Index in the row of every query and key, block after block.
        order [S]: Index in ``queries`` of each token of the row.
    """

    blocks: tuple[Block, ...]
    queries: Tensor
    keys: Tensor
    order: Tensor


@dataclass(frozen=True, kw_only=True)
class Packing:
    """Segments that follow each other in one row of S tokens.

    Attributes:
        position_ids [1, S]: Counted from the beginning of each sequence.
        keys: Tokens that each segment attends to, segment after segment; None: itself alone.
        query_ends, key_ends: Int32, from 0, ends of the segments in the row and in ``keys``.
        longest: Most tokens of a segment, and most that one attends to.
    """

    position_ids: Tensor
    keys: Tensor | None
    query_ends: Tensor
    key_ends: Tensor
    longest: tuple[int, int]

    @classmethod
    def of(cls, made: Segments, device: torch.device) -> Packing:
        segments, sizes = made.segments, made.sizes
        # A segment attends to its row from the beginning, so its ``end`` counts its keys.
        attended = np.array([segment.end for segment in segments])
        ends = [np.append(0, np.cumsum(counts)).astype(np.int32) for counts in (sizes, attended)]
        alone = all(segment.parent is None for segment in segments)
        places = np.concatenate([np.arange(s.begin, s.end) for s in segments])
        return cls(
            position_ids=to_device(places[None], device),
            keys=None if alone else to_device(np.concatenate(made.places), device),
            query_ends=to_device(ends[0], device),
            key_ends=to_device(ends[1], device),
            longest=(int(sizes.max()), int(attended.max())),
        )

    @cached_property
    def blocks(self) -> Blocks:
        """Segments sorted by length, in blocks that cost less than a call for each segment."""
        device = self.position_ids.device
        begins, begins_keys = (ends.cpu().numpy()[:-1] for ends in (self.query_ends, self.key_ends))
        sizes, attended = (np.diff(ends.cpu().numpy()) for ends in (self.query_ends, self.key_ends))
        tokens = np.arange(sizes.sum())
        keys_of = tokens if self.keys is None else self.keys.cpu().numpy()
        blocks, queries, keys, order = [], [], [], np.empty_like(tokens)
        placed = 0
        for block in _grouped(sizes, attended):
            size, seen = sizes[block], attended[block]
            most, longest = int(size.max()), int(seen.max())
            # Padding repeats a segment's last token, whose index exists; ``order`` leaves it out.
            query = np.minimum(np.arange(most), size[:, None] - 1)
            key = np.minimum(np.arange(longest), seen[:, None] - 1)
            queries.append(query + begins[block, None])
            keys.append(keys_of[key + begins_keys[block, None]])
            real = np.arange(most) < size[:, None]
            order[queries[-1][real]] = placed + np.flatnonzero(real)
            placed += real.size
            # Equal lengths need no mask, which lets torch choose a faster kernel.
            same = bool((size == most).all() and (seen == longest).all())
            causal = same and most == longest
            last = (seen - size)[: 1 if same else None, None] + np.arange(most)
            mask = None
            if not (causal or (same and most == 1)):
                mask = to_device(np.arange(longest) <= last[:, None, :, None], device)
            blocks.append(
                Block(count=len(block), queries=most, keys=longest, mask=mask, causal=causal)
            )
        flat = (np.concatenate([part.ravel() for part in parts]) for parts in (queries, keys))
        at_queries, at_keys = (to_device(part, device) for part in flat)
        return Blocks(
            blocks=tuple(blocks), queries=at_queries, keys=at_keys, order=to_device(order, device)
        )


def _grouped(sizes: np.ndarray, attended: np.ndarray) -> list[np.ndarray]:
    """Lists of similar segments, by index, with ``sizes`` queries and ``attended`` keys."""
    made: list[list[int]] = []
    most = longest = 0
    # Sorted by keys, then by queries, neighbours need little padding in a block.
    for index in np.lexsort((sizes, attended)):
        size, seen = int(sizes[index]), int(attended[index])
        wider, longer = max(most, size), max(longest, seen)
        count = len(made[-1]) if made else 0
        alone = _CALL + size * seen
        # A segment joins the last block if the padding costs less than another call.
        if made and (count + 1) * wider * longer <= count * most * longest + alone:
            made[-1].append(int(index))
            most, longest = wider, longer
        else:
            made.append([int(index)])
            most, longest = size, seen
    return [np.array(block) for block in made]


def to_device(array: np.ndarray, device: torch.device) -> Tensor:
    made = torch.from_numpy(array)
    # A copy from pinned memory overlaps with computation.
    return made.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else made
