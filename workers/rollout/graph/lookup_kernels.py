"""Triton kernels of prompt lookup decoding: one program for each row. `lookup.py` has the same in PyTorch."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# (Triton decides the types of a kernel's arguments.)

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def guess(
    tokens,
    read_tokens,
    positions,
    counts,
    active,
    uniforms,
    table,
    row_positions,
    row_counts,
    row_active,
    row_uniforms,
    row_table,
    context,
    length,
    room,
    pages,
    LANES: tl.constexpr,
    LANES_2: tl.constexpr,
    PAGES_2: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Fills the lanes of a row. context: [slots, length]; row_table: [slots, pages]; *_2: the next power of two."""
    row = tl.program_id(0)
    position, count = tl.load(row_positions + row), tl.load(row_counts + row)
    line = context + row.to(tl.int64) * length
    last = tl.load(line + position)
    first = tl.load(line + tl.maximum(position - 1, 0))
    newest = -1
    for begin in range(0, position, BLOCK):
        places = begin + tl.arange(0, BLOCK)
        inside = (places >= 1) & (places < position)
        is_pair = (tl.load(line + places, mask=inside, other=-1) == last) & (
            tl.load(line + places - 1, mask=inside, other=-1) == first
        )
        newest = tl.maximum(newest, tl.max(tl.where(is_pair & inside, places, -1), 0))
    newest = tl.where(newest >= 0, newest, position - 1)
    ahead = tl.arange(0, LANES_2)
    is_lane = ahead < LANES
    places = tl.where(ahead > 0, newest + 1 + (ahead - 1) % (position - newest), position)
    ids = tl.load(line + places, mask=is_lane, other=0)
    lanes = row * LANES + ahead
    tl.store(tokens + lanes, ids, mask=is_lane)
    tl.store(read_tokens + lanes, ids, mask=is_lane)
    tl.store(positions + lanes, position + ahead, mask=is_lane)
    tl.store(counts + lanes, 0, mask=is_lane)
    tl.store(active + lanes, tl.load(row_active + row), mask=is_lane)
    now = tl.minimum(count + ahead, room - 1)
    tl.store(uniforms + lanes, tl.load(row_uniforms + row * room + now, mask=is_lane, other=0.0), mask=is_lane)
    columns = tl.arange(0, PAGES_2)
    held = tl.load(row_table + row * pages + columns, mask=columns < pages, other=0)
    for lane in range(LANES):
        tl.store(table + (row * LANES + lane) * pages + columns, held, mask=columns < pages)


@triton.jit
def accept(
    read_tokens,
    lane_ids,
    lane_log_probs,
    lane_entropies,
    tokens,
    positions,
    counts,
    active,
    out_ids,
    out_log_probs,
    out_entropies,
    context,
    limit,
    stop_ids,
    length,
    room,
    LANES: tl.constexpr,
    STOPS: tl.constexpr,
):
    """Appends to an active row what its lanes drew, up to the first that read a wrong guess."""
    row = tl.program_id(0)
    going = tl.load(active + row) != 0
    position, count = tl.load(positions + row), tl.load(counts + row)
    most, stops = tl.load(limit), tl.load(stop_ids + tl.arange(0, STOPS))
    line = context + row.to(tl.int64) * length
    place = row * room
    for lane in range(LANES):
        at = row * LANES + lane
        token = tl.load(lane_ids + at)
        if going:
            tl.store(out_ids + place + count, token)
            tl.store(out_log_probs + place + count, tl.load(lane_log_probs + at))
            tl.store(out_entropies + place + count, tl.load(lane_entropies + at))
            count += 1
            position += 1
            tl.store(line + tl.minimum(position, length - 1), token)
            tl.store(tokens + row, token)
            is_last = (tl.sum((stops == token).to(tl.int32), 0) > 0) | (count >= most)
            if is_last:
                tl.store(active + row, 0)
            if lane + 1 < LANES:
                going = (is_last == 0) & (tl.load(read_tokens + at + 1) == token)
    tl.store(positions + row, position)
    tl.store(counts + row, count)
