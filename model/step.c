/* One step of writing: the newest piece of each of B texts through the whole model, in one parallel region.

   So little is computed a piece that starting operations one by one takes longer than they do (docs/speed.md); here all
   that is left is reading every weight once. All numbers are fp32; weights, keys and values may be bf16, the upper half
   of an fp32. A matrix (out, in) lies as [out / LANES][in][LANES], its outputs filled up with zeros; in bf16 the
   outputs n and n + 16 of each 32 share a word, n in its lower half. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES 64 /* outputs of one block */
#define AHEAD 4096 /* bytes that are asked of memory before they are needed */
#define ROWS 6   /* texts at once: 6 x 64 sums fill three quarters of 32 vector registers of 16 numbers */

typedef float Vector __attribute__((vector_size(64)));
typedef uint32_t Bits __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));

typedef struct {
    const void *weight;
    const float *bias; /* or NULL */
    long in, out;      /* out is a multiple of LANES */
} Matrix;

typedef struct {
    const float *weight, *bias; /* or NULL */
} Norm;

typedef struct {
    Norm attention_norm;
    Matrix qkv, output;
    Norm feed_forward_norm;
    Matrix up, down;
    void *cache; /* (B, 2 H, context, D): keys, then values */
} Layer;

typedef struct {
    long B, width, heads, context, layers;
    long half, narrow, tanh, stride; /* half: weights in bf16; narrow: the cache; stride: width, filled up to LANES */
    float eps;
    const float *rotary; /* (2, context, D), cosines and signed sines, or NULL */
    Norm norm;
    Matrix head;
    float *normed, *mixed, *gathered, *hidden; /* room for B rows each */
} Model;

enum Then { SET, ADD, ACTIVATE };

/* The weights of LANES outputs from one input. */
static inline __attribute__((always_inline)) void read_weights(const void *weight, long i, int half, Vector w[LANES / 16]) {
    for (int j = 0; j < LANES / 16; j += 2) {
        if (half) {
            const uint32_t *from = (const uint32_t *)weight + (i * LANES + 16 * j) / 2;
            Bits pairs;
            __builtin_prefetch((const char *)from + AHEAD);
            memcpy(&pairs, from, sizeof pairs);
            w[j] = (Vector)(pairs << 16);
            w[j + 1] = (Vector)(pairs & 0xffff0000);
        } else {
            const float *from = (const float *)weight + i * LANES + 16 * j;
            __builtin_prefetch((const char *)from + AHEAD);
            __builtin_prefetch((const char *)(from + 16) + AHEAD);
            memcpy(w + j, from, sizeof *w);
            memcpy(w + j + 1, from + 16, sizeof *w);
        }
    }
}

/* Multiply `rows` rows of x by one block of a matrix. The order of a row's sums does not depend on `rows`. */
static inline __attribute__((always_inline)) void tile(int rows, int half, const void *weight, long in, const float *x,
                                                       long stride, float sums[ROWS][LANES]) {
    Vector sum[ROWS][LANES / 16] = {0};
    for (long i = 0; i < in; i++) {
        Vector w[LANES / 16];
        read_weights(weight, i, half, w);
        for (int r = 0; r < rows; r++)
            for (int j = 0; j < LANES / 16; j++) sum[r][j] += w[j] * x[r * stride + i];
    }
    for (int r = 0; r < rows; r++) memcpy(sums[r], sum[r], sizeof sum[r]);
}

static void tiles(int rows, int half, const void *weight, long in, const float *x, long stride,
                  float sums[ROWS][LANES]) {
#define CASE(n) \
    case n: if (half) tile(n, 1, weight, in, x, stride, sums); else tile(n, 0, weight, in, x, stride, sums); break;
    switch (rows) { CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) }
#undef CASE
}

/* e^x for x <= 0, as the compiler can do for many at once: 2^n e^r with |r| <= ln 2 / 2, by seven terms of the series. */
static inline float exponential(float x) {
    x = x < -87 ? -87 : x;
    float n = rintf(x * 1.44269504f), r = x - n * 0.693359375f + n * 2.12194440e-4f; /* ln 2 in two parts */
    union {
        int32_t bits;
        float power;
    } two = {((int32_t)n + 127) << 23};
    return two.power * (1 + r * (1 + r / 2 * (1 + r / 3 * (1 + r / 4 * (1 + r / 5 * (1 + r / 6 * (1 + r / 7)))))));
}

/* GELU: x times the normal distribution's share below x, or its approximation by tanh (Hendrycks and Gimpel 2016). */
static void activate(float *y, long count, int by_tanh) {
    if (by_tanh) {
#pragma omp simd
        for (long i = 0; i < count; i++) { /* (1 + tanh z) / 2 = 1 / (1 + e^-2z), by |z| so that nothing overflows */
            float z = 1.5957691216f * (y[i] + 0.044715f * y[i] * y[i] * y[i]), e = exponential(-fabsf(z));
            y[i] *= (z < 0 ? e : 1) / (1 + e);
        }
    } else {
#pragma omp simd
        for (long i = 0; i < count; i++) { /* erf within 1.5e-7: Abramowitz and Stegun 1964, 7.1.26 */
            float x = 0.7071067812f * fabsf(y[i]), t = 1 / (1 + 0.3275911f * x);
            float beyond = t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f
                           + t * 1.061405429f)))) * exponential(-x * x) / 2;
            y[i] *= y[i] < 0 ? beyond : 1 - beyond;
        }
    }
}

/* y = xW, y += xW, or y = gelu(xW); the threads share the blocks. */
static void product(const Model *model, Matrix by, const float *x, long stride, float *y, enum Then then) {
    long size = model->half ? sizeof(uint16_t) : sizeof(float);
#pragma omp for schedule(static)
    for (long start = 0; start < by.out; start += LANES)
        for (long b = 0; b < model->B; b += ROWS) {
            int rows = model->B - b < ROWS ? model->B - b : ROWS;
            float sums[ROWS][LANES];
            tiles(rows, model->half, (const char *)by.weight + start * by.in * size, by.in, x + b * stride, stride, sums);
            for (int r = 0; r < rows; r++) {
                float *to = y + (b + r) * by.out + start;
                for (int i = 0; i < LANES; i++) {
                    float sum = sums[r][i] + (by.bias ? by.bias[start + i] : 0);
                    to[i] = then == ADD ? to[i] + sum : sum;
                }
                if (then == ACTIVATE) activate(to, LANES, model->tanh);
            }
        }
}

static void normalise(const Model *model, Norm norm, const float *x, float *y) {
    long width = model->width;
#pragma omp for schedule(static)
    for (long b = 0; b < model->B; b++) {
        const float *from = x + b * model->stride;
        float *to = y + b * model->stride, mean = 0, variance = 0;
        for (long i = 0; i < width; i++) mean += from[i];
        mean /= width;
        for (long i = 0; i < width; i++) variance += (from[i] - mean) * (from[i] - mean);
        float scale = 1 / sqrtf(variance / width + model->eps);
        for (long i = 0; i < width; i++)
            to[i] = (from[i] - mean) * scale * norm.weight[i] + (norm.bias ? norm.bias[i] : 0);
    }
}

/* Turn a query or key by its position: x · cosine + (x, its halves exchanged) · signed sine. */
static void rotate(const Model *model, const float *x, float *to, long at, long D) {
    if (!model->rotary) {
        memcpy(to, x, D * sizeof *to);
        return;
    }
    const float *cosine = model->rotary + at * D, *sine = cosine + model->context * D;
    for (long d = 0; d < D; d++) to[d] = x[d] * cosine[d] + x[d < D / 2 ? d + D / 2 : d - D / 2] * sine[d];
}

static inline float sum_of(Vector x) {
    typedef float Half __attribute__((vector_size(32)));
    typedef float Quarter __attribute__((vector_size(16)));
    Half halves[2];
    memcpy(halves, &x, sizeof x);
    halves[0] += halves[1];
    Quarter quarters[2];
    memcpy(quarters, halves, sizeof *halves);
    quarters[0] += quarters[1];
    return quarters[0][0] + quarters[0][1] + (quarters[0][2] + quarters[0][3]);
}

/* Sixteen numbers of the cache, from the `at`-th on. */
static inline __attribute__((always_inline)) Vector read_cache(const void *cache, long at, int half) {
    Vector x;
    if (half) {
        Halves halves;
        memcpy(&halves, (const uint16_t *)cache + at, sizeof halves);
        x = (Vector)(__builtin_convertvector(halves, Bits) << 16);
    } else
        memcpy(&x, (const float *)cache + at, sizeof x);
    return x;
}

/* One number of the cache. */
static inline __attribute__((always_inline)) float read_one(const void *cache, long at, int half) {
    union {
        uint32_t bits;
        float number;
    } x;
    if (!half) return ((const float *)cache)[at];
    x.bits = (uint32_t)((const uint16_t *)cache)[at] << 16;
    return x.number;
}

/* Write `count` numbers into the cache, in bf16 rounded to the nearest, to even where two are. */
static void write_cache(void *cache, long at, int half, const float *x, long count) {
    if (!half) {
        memcpy((float *)cache + at, x, count * sizeof *x);
        return;
    }
    for (long d = 0; d < count; d++) {
        uint32_t bits;
        memcpy(&bits, x + d, sizeof bits);
        ((uint16_t *)cache)[at + d] = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    }
}

/* Dot products of q with `count` keys one behind the other. */
static inline __attribute__((always_inline)) void dots(const float *q, const void *keys, long at, int half, long count,
                                                       long D, float *products) {
    for (long s = 0; s < count; s++, at += D) {
        Vector sums = {0}, x;
        float rest = 0;
        long d = 0;
        for (; d + 16 <= D; d += 16) {
            memcpy(&x, q + d, sizeof x);
            if (half ? d % 32 == 0 : 1) __builtin_prefetch((const char *)keys + (at + d) * (half ? 2 : 4) + AHEAD);
            sums += x * read_cache(keys, at + d, half);
        }
        for (; d < D; d++) rest += q[d] * read_one(keys, at + d, half);
        products[s] = sum_of(sums) + rest;
    }
}

/* The sum of `count` values one behind the other, each times its weight. */
static inline __attribute__((always_inline)) void mix(const float *weights, const void *values, long at, int half,
                                                      long count, long D, float *mixed) {
    memset(mixed, 0, D * sizeof *mixed);
    for (long s = 0; s < count; s++, at += D) {
        long d = 0;
        for (; d + 16 <= D; d += 16) {
            Vector sum;
            memcpy(&sum, mixed + d, sizeof sum);
            if (half ? d % 32 == 0 : 1) __builtin_prefetch((const char *)values + (at + d) * (half ? 2 : 4) + AHEAD);
            sum += read_cache(values, at + d, half) * weights[s];
            memcpy(mixed + d, &sum, sizeof sum);
        }
        for (; d < D; d++) mixed[d] += read_one(values, at + d, half) * weights[s];
    }
}

/* Append keys and values at position `at`, and gather softmax(qK / sqrt(D)) V of each head. */
static void attend(const Model *model, const Layer *layer, long at) {
    long H = model->heads, D = model->width / H, room = model->context * D;
    float scale = 1 / sqrtf(D);
#pragma omp for schedule(static)
    for (long each = 0; each < model->B * H; each++) {
        long b = each / H, h = each % H, keys = (b * 2 * H + h) * room, values = keys + H * room;
        const float *qkv = model->mixed + b * layer->qkv.out + h * D;
        void *cache = layer->cache;
        float q[D], key[D], weights[at + 1], mixed[D], highest = -INFINITY, sum = 0;
        rotate(model, qkv, q, at, D);
        rotate(model, qkv + model->width, key, at, D);
        write_cache(cache, keys + at * D, model->narrow, key, D);
        write_cache(cache, values + at * D, model->narrow, qkv + 2 * model->width, D);
/* Sizes that the compiler knows it can unroll. */
#define USUAL(what, ...) \
    if (D == 64 && model->narrow) what(__VA_ARGS__, 1, at + 1, 64, what##_to); \
    else if (D == 64) what(__VA_ARGS__, 0, at + 1, 64, what##_to); \
    else what(__VA_ARGS__, model->narrow, at + 1, D, what##_to);
        float *dots_to = weights, *mix_to = mixed;
        USUAL(dots, q, cache, keys)
        for (long s = 0; s <= at; s++) highest = weights[s] > highest ? weights[s] : highest;
#pragma omp simd reduction(+ : sum)
        for (long s = 0; s <= at; s++) {
            weights[s] = exponential((weights[s] - highest) * scale);
            sum += weights[s];
        }
        USUAL(mix, weights, cache, values)
#undef USUAL
        for (long d = 0; d < D; d++) model->gathered[b * model->stride + h * D + d] = mixed[d] / sum;
    }
}

/* x: (B, stride), the vectors of the newest pieces, at position `at`; logits: (B, model->head.out). */
void step(const Model *model, const Layer *layers, long at, float *x, float *logits) {
    long stride = model->stride;
#pragma omp parallel
    {
        for (const Layer *layer = layers; layer < layers + model->layers; layer++) {
            normalise(model, layer->attention_norm, x, model->normed);
            product(model, layer->qkv, model->normed, stride, model->mixed, SET);
            attend(model, layer, at);
            product(model, layer->output, model->gathered, stride, x, ADD);
            normalise(model, layer->feed_forward_norm, x, model->normed);
            product(model, layer->up, model->normed, stride, model->hidden, ACTIVATE);
            product(model, layer->down, model->hidden, layer->up.out, x, ADD);
        }
        normalise(model, model->norm, x, model->normed);
        product(model, model->head, model->normed, stride, logits, SET);
    }
}
