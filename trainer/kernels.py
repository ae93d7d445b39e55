"""The kernels of trainer.fused, in Triton's language.

A program of a kernel has a row, or some rows, or some columns of some rows. Names in capitals are known when a kernel
is built; BLOCK, ROWS and COLUMNS, what a program takes at once, are powers of two, and may be more than there is.
Numbers are computed in float32, whatever they are stored in. What is added up over rows is written by each program for
its own, and the caller adds up those: no sum depends on who comes first.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator"

import triton
import triton.language as tl


@triton.jit
def _kept(seed, row, probability, BLOCK: tl.constexpr):
    """Which elements of a row dropout keeps, bool [BLOCK], by an int64 [1] seed; four share a call of Philox."""
    places = row * (BLOCK // 4) + tl.arange(0, BLOCK // 4)
    a, b, c, d = tl.rand4x(tl.load(seed), places)
    return tl.reshape(tl.join(tl.join(a, b), tl.join(c, d)), (BLOCK,)) >= probability


@triton.jit(do_not_specialize=["seed"])
def add_norm(
    x, residual, scale, shift, total, normed, means, inverses, seed, probability, kept, eps,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """LayerNorm(residual + dropout(x)), one row of T.

    Of [T, WIDTH] are x, residual and, written, total, which is the sum, and normed; scale and shift are [WIDTH].
    Written in float32 are means and inverses, [T], the latter of standard deviations. It is the norm of the sum as that
    is stored, which is what the backward pass has of it. ``kept`` is what dropout multiplies by, 1 / (1 - probability).
    """
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    begin = row.to(tl.int64) * WIDTH
    value = tl.load(x + begin + columns, mask=inside, other=0.0).to(tl.float32)
    if DROPS:
        value = tl.where(_kept(seed, row, probability, BLOCK), value * kept, 0.0)
    value += tl.load(residual + begin + columns, mask=inside, other=0.0).to(tl.float32)
    stored = value.to(total.dtype.element_ty)
    tl.store(total + begin + columns, stored, mask=inside)
    value = stored.to(tl.float32)
    mean = tl.sum(value, axis=0) / WIDTH
    centred = tl.where(inside, value - mean, 0.0)
    inverse = tl.rsqrt(tl.sum(centred * centred, axis=0) / WIDTH + eps)
    tl.store(means + row, mean)
    tl.store(inverses + row, inverse)
    weight = tl.load(scale + columns, mask=inside, other=0.0).to(tl.float32)
    bias = tl.load(shift + columns, mask=inside, other=0.0).to(tl.float32)
    result = centred * inverse * weight + bias
    tl.store(normed + begin + columns, result.to(normed.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["seed", "count"])
def add_norm_backward(
    gradient, total, scale, means, inverses, to_total, to_x, sums, seed, probability, kept, count,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """Gradients of add_norm, of each of P programs every P-th of ``count`` rows.

    Of [count, WIDTH] are gradient, of normed, and, written, to_total, which is the residual's too, and to_x. Written in
    float32 is sums, [P, 3, WIDTH]: what scale, shift and a bias in x get.
    """
    program = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    weight = tl.load(scale + columns, mask=inside, other=0.0).to(tl.float32)
    to_scale = tl.zeros((BLOCK,), dtype=tl.float32)
    to_shift = tl.zeros((BLOCK,), dtype=tl.float32)
    to_bias = tl.zeros((BLOCK,), dtype=tl.float32)
    stride = tl.full((), WIDTH, dtype=tl.int64)
    for row in range(program, count, tl.num_programs(0)):
        begin = row * stride
        upstream = tl.load(gradient + begin + columns, mask=inside, other=0.0).to(tl.float32)
        value = tl.load(total + begin + columns, mask=inside, other=0.0).to(tl.float32)
        inverse = tl.load(inverses + row)
        normal = tl.where(inside, (value - tl.load(means + row)) * inverse, 0.0)
        to_scale += upstream * normal
        to_shift += upstream
        to_normal = upstream * weight
        along = tl.sum(to_normal * normal, axis=0) / WIDTH
        result = (to_normal - tl.sum(to_normal, axis=0) / WIDTH - normal * along) * inverse
        tl.store(to_total + begin + columns, result.to(to_total.dtype.element_ty), mask=inside)
        if DROPS:
            result = tl.where(_kept(seed, row, probability, BLOCK), result * kept, 0.0)
            tl.store(to_x + begin + columns, result.to(to_x.dtype.element_ty), mask=inside)
        to_bias += result
    mine = sums + program * 3 * WIDTH + columns
    tl.store(mine, to_scale, mask=inside)
    tl.store(mine + WIDTH, to_shift, mask=inside)
    tl.store(mine + 2 * WIDTH, to_bias, mask=inside)


@triton.jit
def _normal_cdf(x):
    """Of the standard normal distribution; the error is 2e-6 at most, and that of x times it 7e-7.

    In half the instructions of erf's: the logarithm of the tail is close to a polynomial, here one fitted on [0, 6].
    Beyond that both are so low that they come to nothing.
    """
    a = tl.abs(x)
    power = ((-1.88962622e-06 * a + 6.26813999e-05) * a - 0.000938867917) * a + 0.00853946153
    power = (((power * a - 0.0540206879) * a - 0.458409786) * a - 1.1512692) * a - 0.999994338
    tail = tl.exp2(power)
    return tl.where(x >= 0, 1.0 - tail, tail)


@triton.jit
def _tanh_of_cubic(x):
    """tanh(sqrt(2 / pi) (x + 0.044715 x^3)), google-research/bert's gelu."""
    inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
    return 1.0 - 2.0 / (1.0 + tl.exp2(2.885390081777927 * inner))


@triton.jit
def gelu(x, y, size, BY_ERF: tl.constexpr, BLOCK: tl.constexpr):
    """X by the normal distribution's share below it, or google-research/bert's approximation; x and y have ``size``.

    That it is a multiple of 16 is told when the kernel is built, or else a mask would keep loads from being wide.
    """
    begin = tl.program_id(0).to(tl.int64) * BLOCK
    places = tl.arange(0, BLOCK)
    inside = places < size - begin
    value = tl.load(x + begin + places, mask=inside, other=0.0).to(tl.float32)
    share = _normal_cdf(value) if BY_ERF else 0.5 + 0.5 * _tanh_of_cubic(value)
    tl.store(y + begin + places, (value * share).to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["count", "rows_each"])
def gelu_backward(
    gradient, x, to_x, sums, count, rows_each,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, BY_ERF: tl.constexpr,
):  # fmt: skip
    """Gradients of gelu, some columns of ``rows_each`` of ``count`` rows.

    Of [count, WIDTH] are gradient, of y, x and, written, to_x. Written in float32 is sums, [shares of the rows, WIDTH]:
    what a bias in x gets.
    """
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < WIDTH
    first = tl.program_id(1) * rows_each
    end = tl.minimum(first + rows_each, count)
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    rows = tl.arange(0, ROWS)
    places = rows[:, None] * WIDTH + columns[None, :]
    stride = tl.full((), WIDTH, dtype=tl.int64)
    for row in range(first, end, ROWS):
        here = (rows < end - row)[:, None] & inside[None, :]
        begin = row * stride
        value = tl.load(x + begin + places, mask=here, other=0.0).to(tl.float32)
        if BY_ERF:
            density = 0.3989422804014327 * tl.exp2(-0.7213475204444817 * value * value)
            slope = _normal_cdf(value) + value * density
        else:
            tanh = _tanh_of_cubic(value)
            inner = 0.7978845608028654 * (1.0 + 3.0 * 0.044715 * value * value)
            slope = 0.5 + 0.5 * tanh + 0.5 * value * (1.0 - tanh * tanh) * inner
        result = tl.load(gradient + begin + places, mask=here, other=0.0).to(tl.float32) * slope
        tl.store(to_x + begin + places, result.to(to_x.dtype.element_ty), mask=here)
        total += result
    tl.store(sums + tl.program_id(1) * WIDTH + columns, tl.sum(total, axis=0), mask=inside)
