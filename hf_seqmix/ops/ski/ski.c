/* The operator of SKI, T x = conv(x) + W A W^T x, on a CPU: forward and backward in float32.
 *
 * Tensors of tokens are (batch, length, channels), channels contiguous. A task is one sequence and as many channels as a
 * vector register has lanes. It copies these to a buffer of its own, with zeros at both ends, collecting them at the inducing
 * points on the way; multiplies by the Toeplitz matrix between the points; then interpolates and convolves, a few tokens at
 * a time in registers. The order of every sum follows from the shapes alone, so that results do not depend on the number of
 * threads.
 *
 * Vectors are those that GCC and Clang share, __attribute__((vector_size)): nothing here is written for one processor. */

#if defined(__linux__)
#define _GNU_SOURCE
#include <sys/mman.h>
#endif
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define VERSION 1

/* Sums that stand in registers at a time: enough to hide the latency of a multiply-add, few enough for all to fit. */
#if defined(__AVX512F__)
#define LANES 16
#define TILE 10
#elif defined(__AVX__)
#define LANES 8
#define TILE 8
#else
#define LANES 4
#define TILE 8
#endif
/* Tokens whose products are summed before they join the gradient of the taps; so many of g and of x fit the first cache. */
#define CHUNK 256
/* Numbers of a result that the C library maps anew for every call: 24 MiB. */
#define LARGE (6 << 20)

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int64_t i64;

typedef struct {
    i64 batch, channels, length, points, taps;
    i64 width;            /* weights of a token: 2, linear, or 4, cubic */
    const i64 *first;     /* (length), the first point that a token meets; never falls */
    const float *weights; /* (length, width) */
    const float *kernel;  /* (channels, 2 points - 1), lags from 1 - points */
    const float *filter;  /* (channels, taps), lags from taps / 2 down */
    i64 mirrored;         /* whether the transpose of T is meant */
    i64 groups;           /* of sequences, whose gradients of filter and kernel are summed apart */
    i64 threads;
} Problem;

static i64 smaller(i64 a, i64 b) { return a < b ? a : b; }

static i64 larger(i64 a, i64 b) { return a > b ? a : b; }

INLINE vec load(const float *from, i64 lanes) {
    vec value = {0};
    memcpy(&value, from, (size_t)lanes * sizeof(float));
    return value;
}

INLINE void store(float *to, vec value, i64 lanes) { memcpy(to, &value, (size_t)lanes * sizeof(float)); }

/* sums[t] += sum_(q < count) w[q step] x[q + t] for t < tile: every product here but those with W is this loop. */
INLINE void correlate(vec *sums, const vec *w, i64 step, const vec *x, i64 count, const int tile) {
    vec own[16];
    UNROLL for (int t = 0; t < tile; t++) own[t] = sums[t];
#pragma GCC unroll 4
    for (i64 q = 0; q < count; q++) {
        vec factor = w[q * step];
        UNROLL for (int t = 0; t < tile; t++) own[t] += factor * x[q + t];
    }
    UNROLL for (int t = 0; t < tile; t++) sums[t] = own[t];
}

/* The same for t < wanted, in tiles as equal as can be, where x is zero before `begin` and from `end` on. */
static void correlate_all(vec *sums, i64 wanted, const vec *w, i64 step, const vec *x, i64 count, i64 begin, i64 end) {
    i64 tile;
    for (i64 start = 0; start < wanted; start += tile) {
        i64 tiles = (wanted - start + TILE - 1) / TILE;
        tile = (wanted - start + tiles - 1) / tiles;
        i64 skipped = larger(0, begin - (start + tile - 1)), some = smaller(count, end - start) - skipped;
        const vec *from = x + start + skipped;
        switch (tile) {
#define CASE(n) \
    case n: correlate(sums + start, w + skipped * step, step, from, some, n); break;
            CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10)
#undef CASE
        }
    }
}

INLINE void collect_rows(vec *sums, vec *copy, const float *x, i64 token, const float *weights, i64 lanes,
                         const int width, const int rows) {
    UNROLL for (int r = 0; r < rows; r++) {
        vec value = load(x + r * token, lanes);
        copy[r] = value;
        UNROLL for (int k = 0; k < width; k++) sums[(r & 1) * width + k] += weights[r * width + k] * value;
    }
}

INLINE void collect_as(vec *z, vec *copy, const float *x, i64 token, const Problem *p, i64 lanes, const int width) {
    for (i64 i = 0, stop = 0; i < p->length;) {
        i64 cell = p->first[i];
        while (stop < p->length && p->first[stop] == cell) stop++;
        vec sums[8] = {0};
        for (; i + 4 <= stop; i += 4)
            collect_rows(sums, copy + i, x + i * token, token, p->weights + i * width, lanes, width, 4);
        for (; i < stop; i++)
            collect_rows(sums, copy + i, x + i * token, token, p->weights + i * width, lanes, width, 1);
        UNROLL for (int k = 0; k < width; k++) z[cell + k] += sums[k] + sums[width + k];
    }
}

/* z[p] = sum_i W[i, p] x[i], with `width` places more than points, which W's zero weights may touch; x goes to `copy`. */
static void collect(vec *z, vec *copy, const float *x, i64 token, const Problem *p, i64 lanes) {
    memset(z, 0, (size_t)(p->points + p->width) * sizeof(vec));
    if (lanes == LANES && p->width == 2)
        collect_as(z, copy, x, token, p, LANES, 2);
    else if (lanes == LANES)
        collect_as(z, copy, x, token, p, LANES, 4);
    else if (p->width == 2)
        collect_as(z, copy, x, token, p, lanes, 2);
    else
        collect_as(z, copy, x, token, p, lanes, 4);
}

INLINE void finish_as(float *y, i64 token, const vec *filter, const vec *x, const vec *u, const Problem *p, i64 lanes,
                      const int width) {
    for (i64 start = 0; start < p->length; start += TILE) {
        i64 count = smaller(TILE, p->length - start);
        vec sums[TILE] = {0};
        for (i64 t = 0; t < count; t++) {
            const vec *values = u + p->first[start + t];
            const float *weights = p->weights + (start + t) * width;
            UNROLL for (int k = 0; k < width; k++) sums[t] += weights[k] * values[k];
        }
        correlate(sums, filter, 1, x + start, p->taps, TILE);
        for (i64 t = 0; t < count; t++) store(y + (start + t) * token, sums[t], lanes);
    }
}

/* y[i] = sum_p W[i, p] u[p] + sum_q filter[q] x[i + q], x with taps - 1 + TILE places more than tokens. */
static void finish(float *y, i64 token, const vec *filter, const vec *x, const vec *u, const Problem *p, i64 lanes) {
    if (lanes == LANES && p->width == 2)
        finish_as(y, token, filter, x, u, p, LANES, 2);
    else if (lanes == LANES)
        finish_as(y, token, filter, x, u, p, LANES, 4);
    else if (p->width == 2)
        finish_as(y, token, filter, x, u, p, lanes, 2);
    else
        finish_as(y, token, filter, x, u, p, lanes, 4);
}

/* Lays rows of `count` numbers, one a lane, side by side: in order, or mirrored. */
static void side_by_side(vec *to, const float *rows, i64 count, i64 lanes, int mirrored) {
    for (i64 q = 0; q < count; q++) {
        float value[LANES] = {0};
        for (i64 c = 0; c < lanes; c++) value[c] = rows[c * count + (mirrored ? count - 1 - q : q)];
        memcpy(to + q, value, sizeof value);
    }
}

static void back_to_rows(float *rows, const vec *from, i64 count, i64 lanes) {
    for (i64 q = 0; q < count; q++)
        for (i64 c = 0; c < lanes; c++) rows[c * count + q] = from[q][c];
}

/* What a thread works in: vectors, all zero at first. */
typedef struct {
    char *memory;
    vec *x, *g;                  /* copies, with zeros at both ends */
    vec *filter, *kernel;
    vec *collected, *mixed;      /* W^T of what is multiplied, and A times that */
    vec *reversed;               /* W^T x backwards, points - 1 zeros before and after it */
    vec *part;                   /* of dfilter, from a chunk of tokens */
    vec *dfilter, *dkernel;
} Work;

/* Returns whether there is enough memory. */
static int prepare(Work *work, const Problem *p, int backward) {
    i64 padded = p->length + p->taps - 1 + TILE, inner = p->points + p->width, lags = 2 * p->points - 1;
    struct { vec **to; i64 size; } parts[] = {
        {&work->x, padded}, {&work->filter, p->taps}, {&work->kernel, lags}, {&work->collected, inner}, {&work->mixed, inner},
        {&work->g, padded}, {&work->reversed, p->points + lags - 1}, {&work->part, p->taps}, {&work->dfilter, p->taps},
        {&work->dkernel, lags},
    };
    int count = backward ? 10 : 5;
    i64 total = 1;
    for (int i = 0; i < count; i++) total += parts[i].size;
    work->memory = calloc((size_t)total, sizeof(vec));
    if (!work->memory) return 0;
    vec *at = (vec *)(work->memory + sizeof(vec) - (uintptr_t)work->memory % sizeof(vec));
    for (int i = 0; i < count; at += parts[i++].size) *parts[i].to = at;
    return 1;
}

/* Tells the system that all of a large result is about to be written: it was mapped just now, and a page fault for every
 * 4 KiB costs more than the computation. */
static void expect(const float *y, i64 batch, i64 token, const Problem *p) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    uintptr_t page = 4096, begin = ((uintptr_t)y + page - 1) / page * page;
    i64 count = (p->batch - 1) * batch + (p->length - 1) * token + p->channels;
    if (count >= LARGE) madvise((void *)begin, (uintptr_t)(y + count) - begin, MADV_HUGEPAGE);
#else
    (void)y, (void)batch, (void)token, (void)p;
#endif
}

static void multiply(Work *work, const Problem *p) {
    memset(work->mixed, 0, (size_t)p->points * sizeof(vec));
    correlate_all(work->mixed, p->points, work->collected + p->points - 1, -1, work->kernel, p->points, 0, 2 * p->points - 1);
}

static void add_gradients(Work *work, const Problem *p) {
    for (i64 start = 0; start < p->length; start += CHUNK) {
        memset(work->part, 0, (size_t)p->taps * sizeof(vec));
        correlate_all(work->part, p->taps, work->g + p->taps / 2 + start, 1, work->x + start,
                      smaller(CHUNK, p->length - start), 0, INT64_MAX);
        for (i64 q = 0; q < p->taps; q++) work->dfilter[q] += work->part[q];
    }
    correlate_all(work->dkernel, 2 * p->points - 1, work->collected + p->points - 1, -1, work->reversed, p->points,
                  p->points - 1, 2 * p->points - 1);
}

int hf_seqmix_ski_version(void) { return VERSION; }

/* y = T x; tensors are given by their address and the strides, in floats, of sequences and tokens. Returns 0, or 1 where
 * there is not enough memory. */
int hf_seqmix_ski_forward(const Problem *p, const float *x, i64 x_batch, i64 x_token, float *y, i64 y_batch, i64 y_token) {
    i64 lags = 2 * p->points - 1, blocks = (p->channels + LANES - 1) / LANES;
    int failed = 0;
    expect(y, y_batch, y_token, p);
#pragma omp parallel num_threads(p->threads) if (p->threads > 1)
    {
        Work work;
        int ready = prepare(&work, p, 0);
        i64 held = -1;
#pragma omp for schedule(static)
        for (i64 task = 0; task < blocks * p->batch; task++) {
            if (!ready) {
#pragma omp atomic write
                failed = 1;
                continue;
            }
            i64 block = task / p->batch, b = task % p->batch, c = block * LANES, lanes = smaller(LANES, p->channels - c);
            if (block != held) {
                side_by_side(work.filter, p->filter + c * p->taps, p->taps, lanes, p->mirrored);
                side_by_side(work.kernel, p->kernel + c * lags, lags, lanes, p->mirrored);
                held = block;
            }
            collect(work.collected, work.x + p->taps / 2, x + b * x_batch + c, x_token, p, lanes);
            multiply(&work, p);
            finish(y + b * y_batch + c, y_token, work.filter, work.x, work.mixed, p, lanes);
        }
        free(work.memory);
    }
    return failed;
}

/* dx = T^T g; dfilter and dkernel (groups, channels, ...), to be summed over groups of sequences. Returns 0, or 1 where there
 * is not enough memory. */
int hf_seqmix_ski_backward(const Problem *p, const float *g, i64 g_batch, i64 g_token, const float *x, i64 x_batch,
                           i64 x_token, float *dx, i64 dx_batch, i64 dx_token, float *dfilter, float *dkernel) {
    i64 lags = 2 * p->points - 1, blocks = (p->channels + LANES - 1) / LANES;
    int failed = 0;
    expect(dx, dx_batch, dx_token, p);
#pragma omp parallel num_threads(p->threads) if (p->threads > 1)
    {
        Work work;
        int ready = prepare(&work, p, 1);
#pragma omp for schedule(static)
        for (i64 task = 0; task < blocks * p->groups; task++) {
            if (!ready) {
#pragma omp atomic write
                failed = 1;
                continue;
            }
            i64 c = task / p->groups * LANES, group = task % p->groups, lanes = smaller(LANES, p->channels - c);
            side_by_side(work.filter, p->filter + c * p->taps, p->taps, lanes, !p->mirrored);
            side_by_side(work.kernel, p->kernel + c * lags, lags, lanes, !p->mirrored);
            memset(work.dfilter, 0, (size_t)p->taps * sizeof(vec));
            memset(work.dkernel, 0, (size_t)lags * sizeof(vec));
            for (i64 b = group * p->batch / p->groups; b < (group + 1) * p->batch / p->groups; b++) {
                collect(work.collected, work.x + p->taps / 2, x + b * x_batch + c, x_token, p, lanes);
                for (i64 j = 0; j < p->points; j++) work.reversed[2 * (p->points - 1) - j] = work.collected[j];
                collect(work.collected, work.g + p->taps / 2, g + b * g_batch + c, g_token, p, lanes);
                add_gradients(&work, p);
                multiply(&work, p);
                finish(dx + b * dx_batch + c, dx_token, work.filter, work.g, work.mixed, p, lanes);
            }
            back_to_rows(dfilter + (group * p->channels + c) * p->taps, work.dfilter, p->taps, lanes);
            back_to_rows(dkernel + (group * p->channels + c) * lags, work.dkernel, lags, lanes);
        }
        free(work.memory);
    }
    return failed;
}
