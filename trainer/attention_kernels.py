"""The kernels of attention within packed sequences, with dropout of its weights, in Triton's language.

A program has some queries of a head of a sequence, or some keys, and goes through the keys, or queries, of that
sequence. Nothing is computed for padding but in a sequence's last block, nothing is added up by several programs, and
no weight is stored: the backward pass computes them anew (Dao et al., 2022). Which of them dropout keeps is drawn once
and stored, a bit each.

Names in capitals are known when a kernel is built: HEADS of WIDTH, for which there are BLOCK columns, a power of two;
QUERIES and KEYS of a block, powers of two; CAUSAL, a query sees no later key; DROPS, ``dropped`` of 2^16 weights become
zero and the others grow by ``kept``. There are R queries and T keys and values, of B sequences; the queries of sequence
b are query_bounds[b] up to query_bounds[b + 1], and so are its keys. Rows of queries, keys and values, and of what is
written of their gradients, are ``stride`` elements apart, and heads WIDTH. Products of queries and keys times
``to_score`` are scores, and times ``to_exponent`` exponents of two, for exponentials are powers of two here.

    gathered, upstream    [R, HEADS * WIDTH], what attention gives and its gradient
    logs                  float32 [HEADS, R], of each query the logarithm of what softmax divides by; R is ``count``
    bits                  uint8 [R, HEADS, groups], bit b of group g for key 8 g + b of the query's sequence: is it kept
    sums                  float32 [B, blocks of a sequence, 3, HEADS * WIDTH], of the gradients of queries, keys and
                          values, what a bias in them gets; or None
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator"

import triton
import triton.language as tl


@triton.jit
def _load(x, rows, end, stride, head, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """[rows, BLOCK] of a head, zero from row ``end`` on and beyond its width."""
    columns = tl.arange(0, BLOCK)
    places = rows.to(tl.int64)[:, None] * stride + head * WIDTH + columns[None, :]
    return tl.load(x + places, mask=(rows < end)[:, None] & (columns < WIDTH)[None, :], other=0.0)


@triton.jit
def _store(x, value, rows, end, stride, head, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """As _load."""
    columns = tl.arange(0, BLOCK)
    places = rows.to(tl.int64)[:, None] * stride + head * WIDTH + columns[None, :]
    tl.store(x + places, value.to(x.dtype.element_ty), mask=(rows < end)[:, None] & (columns < WIDTH)[None, :])


@triton.jit
def _seen(rows, keys, count, CAUSAL: tl.constexpr):
    """Which keys a query sees, of the first ``count``, bool [rows, keys]. If a later one is none, all tokens ask."""
    seen = (tl.arange(0, keys.shape[0]) < count)[None, :]
    if CAUSAL:
        seen = seen & (keys[None, :] <= rows[:, None])
    return seen


@triton.jit
def _places(rows, start, head, group_count, HEADS: tl.constexpr, KEYS: tl.constexpr):
    """Where bits of dropout are, [rows, KEYS / 8], from some key of the sequence on."""
    groups = start // 8 + tl.arange(0, KEYS // 8)
    return (rows.to(tl.int64)[:, None] * HEADS + head) * group_count + groups[None, :]


@triton.jit
def _drawn(
    bits, rows, end, start, head, group_count,
    HEADS: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """Bits of dropout, uint8 [QUERIES, KEYS / 8], zeros for rows from ``end`` on and where nothing is dropped."""
    drawn = tl.zeros((QUERIES, KEYS // 8), dtype=tl.uint8)
    if DROPS:
        places = _places(rows, start, head, group_count, HEADS, KEYS)
        drawn = tl.load(bits + places, mask=(rows < end)[:, None], other=0)
    return drawn


@triton.jit
def _dropped(x, bits):
    """Float32 [rows, keys] with zeros where dropout keeps none, by bits of it, uint8 [rows, keys / 8].

    A product with 1.0, whose bits are 127 << 23, takes fewest instructions; of a whole sequence it takes registers that
    there are not.
    """
    bits, place = bits.to(tl.int32)[:, :, None], tl.arange(0, 8)[None, None, :]
    if x.shape[0] > 64:
        dropped = tl.where(tl.reshape((bits >> place) & 1, x.shape) != 0, x, 0.0)
    else:
        factor = (bits & (1 << place)) * (127 << (23 - place))
        dropped = x * tl.reshape(factor, x.shape).to(tl.float32, bitcast=True)
    return dropped


@triton.jit
def _sum_rows(sums, values, part: tl.constexpr, head, HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Add up a program's [rows, BLOCK] of queries, keys or values, part 0, 1 or 2, as they are stored.

    By a product with ones, of 16 rows, the fewest that there are: to hand numbers from thread to thread takes longer.
    """
    ones = tl.full((16, values.shape[0]), 1.0, dtype=values.dtype)
    total = tl.dot(ones, values, input_precision="ieee")
    block = tl.program_id(2) * tl.num_programs(0) + tl.program_id(0)
    rows, columns = tl.arange(0, 16)[:, None], tl.arange(0, BLOCK)[None, :]
    places = (block * 3 + part) * HEADS * WIDTH + head * WIDTH + columns + rows * 0
    tl.store(sums + places, total, mask=(columns < WIDTH) & (rows == 0))


@triton.jit
def _bit(number, dropped, place: tl.constexpr):
    return (number >= dropped).to(tl.uint32) << place


@triton.jit(do_not_specialize=["seed", "dropped"])
def draw(
    bits, query_bounds, key_bounds, group_count, seed, dropped,
    HEADS: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Bits of dropout for some queries of a head of a sequence. Philox's four numbers of 32 bits are eight of 16."""
    head, sequence = tl.program_id(1), tl.program_id(2)
    first, end = tl.load(query_bounds + sequence), tl.load(query_bounds + sequence + 1)
    length = tl.load(key_bounds + sequence + 1) - tl.load(key_bounds + sequence)
    begin = first + tl.program_id(0) * QUERIES
    if begin < end:
        rows = begin + tl.arange(0, QUERIES)
        drawing = tl.load(seed)
        for start in range(0, length, KEYS):
            group = start // 8 + tl.arange(0, KEYS // 8)[None, :] + rows[:, None] * 0
            row = (rows * HEADS + head)[:, None] + group * 0
            a, b, c, d = tl.philox(drawing, group, row, group * 0, group * 0)
            found = _bit(a & 0xFFFF, dropped, 0) | _bit(a >> 16, dropped, 1) | _bit(b & 0xFFFF, dropped, 2)
            found |= _bit(b >> 16, dropped, 3) | _bit(c & 0xFFFF, dropped, 4) | _bit(c >> 16, dropped, 5)
            found |= _bit(d & 0xFFFF, dropped, 6) | _bit(d >> 16, dropped, 7)
            places = _places(rows, start, head, group_count, HEADS, KEYS)
            tl.store(bits + places, found.to(tl.uint8), mask=(rows < end)[:, None])


@triton.jit(do_not_specialize=["count"])
def attend(
    query, key, value, gathered, logs, bits, query_bounds, key_bounds, query_stride, key_stride, count, group_count,
    to_exponent, kept,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    CAUSAL: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """dropout(softmax(Q K^T)) V of some queries of a head of a sequence: gathered and logs."""
    head, sequence = tl.program_id(1), tl.program_id(2)
    first, end = tl.load(query_bounds + sequence), tl.load(query_bounds + sequence + 1)
    key_first, key_end = tl.load(key_bounds + sequence), tl.load(key_bounds + sequence + 1)
    length = key_end - key_first
    begin = first + tl.program_id(0) * QUERIES
    if begin < end:
        rows = begin + tl.arange(0, QUERIES)
        asking = _load(query, rows, end, query_stride, head, WIDTH, BLOCK)
        largest = tl.full((QUERIES,), float("-inf"), dtype=tl.float32)
        total = tl.zeros((QUERIES,), dtype=tl.float32)
        result = tl.zeros((QUERIES, BLOCK), dtype=tl.float32)
        stop = tl.minimum(length, begin - first + QUERIES) if CAUSAL else length
        tl.assume(stop > 0)  # or for the loop that has no round, ptxas has each product wait for the last (C7515)
        for start in range(0, stop, KEYS):
            keys = key_first + start + tl.arange(0, KEYS)
            asked = _load(key, keys, key_end, key_stride, head, WIDTH, BLOCK)
            scores = tl.dot(asking, tl.trans(asked), input_precision="ieee")
            scores = tl.where(_seen(rows, keys, length - start, CAUSAL), scores, float("-inf"))
            higher = tl.maximum(largest, tl.max(scores, axis=1))  # finite: every query sees the first key
            weights = tl.exp2(scores * to_exponent - (higher * to_exponent)[:, None])
            shrink = tl.exp2((largest - higher) * to_exponent)
            total = total * shrink + tl.sum(weights, axis=1)
            largest = higher
            if DROPS:
                drawn = _drawn(bits, rows, end, start, head, group_count, HEADS, QUERIES, KEYS, DROPS)
                weights = _dropped(weights, drawn)
            values = _load(value, keys, key_end, key_stride, head, WIDTH, BLOCK)
            result = tl.dot(weights.to(values.dtype), values, result * shrink[:, None], input_precision="ieee")
        factor = (kept if DROPS else 1.0) / total
        _store(gathered, result * factor[:, None], rows, end, HEADS * WIDTH, head, WIDTH, BLOCK)
        tl.store(logs + head * count + rows, largest * to_exponent + tl.log2(total), mask=rows < end)


@triton.jit
def _weights(
    asking, asked, values, to_output, log, seen, bits, to_exponent, DROPS: tl.constexpr,
):  # fmt: skip
    """Softmax's weights, what dropout has made of them, and the gradients of the former, [QUERIES, KEYS] each.

    Of blocks of queries, keys and values, the output's gradients, logs, and bits, which are not needed without dropout.
    The last two are yet to be multiplied by ``kept``, as what is added up of them will be.
    """
    scores = tl.dot(asking, tl.trans(asked), input_precision="ieee") * to_exponent
    weights = tl.where(seen, tl.exp2(scores - log[:, None]), 0.0)
    used = weights
    to_weights = tl.dot(to_output, tl.trans(values), input_precision="ieee")
    if DROPS:
        used = _dropped(weights, bits)
        to_weights = _dropped(to_weights, bits)
    return weights, used, to_weights


@triton.jit(do_not_specialize=["count"])
def attend_backward(
    query, key, value, logs, bits, upstream, to_query, to_key, to_value, sums, query_bounds, key_bounds,
    query_stride, key_stride, to_stride, count, group_count, to_exponent, to_score, kept,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    CAUSAL: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """Gradients of attend's queries, keys and values, of a head of a sequence that a block has as a whole; and sums."""
    head, sequence = tl.program_id(1), tl.program_id(2)
    first, end = tl.load(query_bounds + sequence), tl.load(query_bounds + sequence + 1)
    key_first, key_end = tl.load(key_bounds + sequence), tl.load(key_bounds + sequence + 1)
    rows, keys = first + tl.arange(0, QUERIES), key_first + tl.arange(0, KEYS)
    asking = _load(query, rows, end, query_stride, head, WIDTH, BLOCK)
    asked = _load(key, keys, key_end, key_stride, head, WIDTH, BLOCK)
    values = _load(value, keys, key_end, key_stride, head, WIDTH, BLOCK)
    to_output = _load(upstream, rows, end, HEADS * WIDTH, head, WIDTH, BLOCK)
    log = tl.load(logs + head * count + rows, mask=rows < end, other=0.0)
    drawn = _drawn(bits, rows, end, 0, head, group_count, HEADS, QUERIES, KEYS, DROPS)
    seen = _seen(rows, keys, key_end - key_first, CAUSAL)
    weights, used, to_weights = _weights(asking, asked, values, to_output, log, seen, drawn, to_exponent, DROPS)
    used = used.to(to_output.dtype)
    to_values = (tl.dot(tl.trans(used), to_output, input_precision="ieee") * kept).to(to_output.dtype)
    _store(to_value, to_values, keys, key_end, to_stride, head, WIDTH, BLOCK)
    to_scores = weights * (to_weights - tl.sum(weights * to_weights, axis=1)[:, None])
    to_scores = to_scores.to(to_output.dtype)
    to_queries = (tl.dot(to_scores, asked, input_precision="ieee") * (to_score * kept)).to(to_output.dtype)
    _store(to_query, to_queries, rows, end, to_stride, head, WIDTH, BLOCK)
    to_keys = (tl.dot(tl.trans(to_scores), asking, input_precision="ieee") * (to_score * kept)).to(to_output.dtype)
    _store(to_key, to_keys, keys, key_end, to_stride, head, WIDTH, BLOCK)
    if sums is not None:
        _sum_rows(sums, to_queries, 0, head, HEADS, WIDTH, BLOCK)
        _sum_rows(sums, to_keys, 1, head, HEADS, WIDTH, BLOCK)
        _sum_rows(sums, to_values, 2, head, HEADS, WIDTH, BLOCK)


@triton.jit(do_not_specialize=["count"])
def attend_backward_queries(
    query, key, value, gathered, logs, bits, upstream, deltas, to_query, sums, query_bounds, key_bounds,
    query_stride, key_stride, to_stride, count, group_count, to_exponent, to_score, kept,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    CAUSAL: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """Gradients of attend's queries, some of a head of a sequence; their sums; and deltas, as logs.

    A delta is a query's sum of its weights times their gradients, as _weights has them: without ``kept``, that of its
    output's elements times theirs.
    """
    head, sequence = tl.program_id(1), tl.program_id(2)
    first, end = tl.load(query_bounds + sequence), tl.load(query_bounds + sequence + 1)
    key_first, key_end = tl.load(key_bounds + sequence), tl.load(key_bounds + sequence + 1)
    length = key_end - key_first
    begin = first + tl.program_id(0) * QUERIES
    rows = begin + tl.arange(0, QUERIES)
    result = tl.zeros((QUERIES, BLOCK), dtype=tl.float32)
    if begin < end:
        asking = _load(query, rows, end, query_stride, head, WIDTH, BLOCK)
        to_output = _load(upstream, rows, end, HEADS * WIDTH, head, WIDTH, BLOCK)
        output = _load(gathered, rows, end, HEADS * WIDTH, head, WIDTH, BLOCK)
        log = tl.load(logs + head * count + rows, mask=rows < end, other=0.0)
        delta = tl.sum(output.to(tl.float32) * to_output.to(tl.float32), axis=1) / kept
        tl.store(deltas + head * count + rows, delta, mask=rows < end)
        stop = tl.minimum(length, begin - first + QUERIES) if CAUSAL else length
        for start in range(0, stop, KEYS):
            keys = key_first + start + tl.arange(0, KEYS)
            asked = _load(key, keys, key_end, key_stride, head, WIDTH, BLOCK)
            values = _load(value, keys, key_end, key_stride, head, WIDTH, BLOCK)
            drawn = _drawn(bits, rows, end, start, head, group_count, HEADS, QUERIES, KEYS, DROPS)
            seen = _seen(rows, keys, length - start, CAUSAL)
            weights, _, to_weights = _weights(asking, asked, values, to_output, log, seen, drawn, to_exponent, DROPS)
            to_scores = weights * (to_weights - delta[:, None])
            result = tl.dot(to_scores.to(asked.dtype), asked, result, input_precision="ieee")
    to_queries = (result * (to_score * kept)).to(to_query.dtype.element_ty)
    _store(to_query, to_queries, rows, end, to_stride, head, WIDTH, BLOCK)
    if sums is not None:
        _sum_rows(sums, to_queries, 0, head, HEADS, WIDTH, BLOCK)


@triton.jit(do_not_specialize=["count"])
def attend_backward_keys(
    query, key, value, logs, bits, upstream, deltas, to_key, to_value, sums, query_bounds, key_bounds,
    query_stride, key_stride, to_stride, count, group_count, to_exponent, to_score, kept,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    CAUSAL: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """Gradients of attend's keys and values, some of a head of a sequence, and their sums; with others' deltas."""
    head, sequence = tl.program_id(1), tl.program_id(2)
    first, end = tl.load(query_bounds + sequence), tl.load(query_bounds + sequence + 1)
    key_first, key_end = tl.load(key_bounds + sequence), tl.load(key_bounds + sequence + 1)
    start = tl.program_id(0) * KEYS
    keys = key_first + start + tl.arange(0, KEYS)
    to_keys = tl.zeros((KEYS, BLOCK), dtype=tl.float32)
    to_values = tl.zeros((KEYS, BLOCK), dtype=tl.float32)
    if start < key_end - key_first:
        asked = _load(key, keys, key_end, key_stride, head, WIDTH, BLOCK)
        values = _load(value, keys, key_end, key_stride, head, WIDTH, BLOCK)
        begin = first + start // QUERIES * QUERIES if CAUSAL else first
        for query_start in range(begin, end, QUERIES):
            rows = query_start + tl.arange(0, QUERIES)
            asking = _load(query, rows, end, query_stride, head, WIDTH, BLOCK)
            to_output = _load(upstream, rows, end, HEADS * WIDTH, head, WIDTH, BLOCK)
            log = tl.load(logs + head * count + rows, mask=rows < end, other=0.0)
            delta = tl.load(deltas + head * count + rows, mask=rows < end, other=0.0)
            drawn = _drawn(bits, rows, end, start, head, group_count, HEADS, QUERIES, KEYS, DROPS)
            seen = _seen(rows, keys, key_end - key_first - start, CAUSAL)
            weights, used, to_weights = _weights(asking, asked, values, to_output, log, seen, drawn, to_exponent, DROPS)
            used = used.to(to_output.dtype)
            to_values = tl.dot(tl.trans(used), to_output, to_values, input_precision="ieee")
            to_scores = (weights * (to_weights - delta[:, None])).to(asking.dtype)
            to_keys = tl.dot(tl.trans(to_scores), asking, to_keys, input_precision="ieee")
    to_keys = (to_keys * (to_score * kept)).to(to_key.dtype.element_ty)
    to_values = (to_values * kept).to(to_value.dtype.element_ty)
    _store(to_key, to_keys, keys, key_end, to_stride, head, WIDTH, BLOCK)
    _store(to_value, to_values, keys, key_end, to_stride, head, WIDTH, BLOCK)
    if sums is not None:
        _sum_rows(sums, to_keys, 1, head, HEADS, WIDTH, BLOCK)
        _sum_rows(sums, to_values, 2, head, HEADS, WIDTH, BLOCK)
