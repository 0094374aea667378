// Products of a few rows with a large weight, y[M, N] = x[M, K] W[N, K]^T, for the decode step: bound by reading W.
//
// A weight never leaves registers: each lane reads whole blocks of 64 of the rows that it holds in the tensor cores'
// fragment, and because a sum does not mind its order, those 64 need not be moved to other lanes. With few rows of x, warps of
// a block share K, and keep their part of x in registers for several tiles of weights; with many, reading x would cost more than
// reading W, so they share x instead. Blocks may share K too, and all sums are in a fixed order.

#include "weights.cuh"

// From Hopper on a kernel may begin while those before it still run. All let the next one begin at once, read first what no
// kernel of a step writes, which is weights, and wait here before anything else is read or written.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void let_next_begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ float rounded(float value) { return __uint_as_float(pack(0.0f, value) & 0xffff0000u); }

__device__ __forceinline__ void mma(float* c, const u32* a, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// 16 bytes into shared memory without passing through registers; zeros after the first `bytes` of them.
__device__ __forceinline__ void copy(uint4* to, const uint4* from, u32 bytes = 16) {
    u32 at = (u32)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes) : "memory");
}

__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Where element k of row m lies in x, so that a warp's 16 bytes a lane are neighbours: [m / 8][k / 256][k % 64 / 8] of 32
// lanes (m % 8, k % 256 / 64) of 8 elements.
__device__ __forceinline__ long place(int m, int k, int K) {
    int chunks = (K + 255) >> 8;
    return ((((long)(m >> 3) * chunks + (k >> 8)) * 8 + ((k & 63) >> 3)) * 32 + (m & 7) * 4 + ((k & 255) >> 6)) * 8 + (k & 7);
}

// Where a chunk's x is read from: 16 bytes of this lane in the block's tile `j`, an eighth of a block's 64. Rows that are not
// there may be anything, places behind K are zero.
struct FromGlobal {
    const uint4* x;
    int tile, tiles, block, blocks;

    __device__ __forceinline__ uint4 read(int j, int eighth) const {
        if (tile + j >= tiles || block >= blocks) return make_uint4(0, 0, 0, 0);
        int chunks = (blocks + 3) >> 2;
        // Not __ldg: it is for what was there before the kernel began.
        return x[(((long)(tile + j) * chunks + (block >> 2)) * 8 + eighth) * 32 + (threadIdx.x & 31)];
    }
};

struct FromShared {
    const uint4* chunk;  // [NT][8][32]

    __device__ __forceinline__ uint4 read(int j, int eighth) const { return chunk[(j * 8 + eighth) * 32 + (threadIdx.x & 31)]; }

    // Of the 16 at `at`, which belong to one block of a chunk of which `left` are there.
    static __device__ __forceinline__ u32 bytes(int at, int left) { return (at & 3) < left ? 16 : 0; }

    static __device__ __forceinline__ void publish() {}
};

// Adds the products of a tile of 16 weight rows with NT tiles of 8 rows of x, over the blocks of one chunk of 256.
template <int NT, class X>
__device__ __forceinline__ void multiply(float (*acc)[4], const Block<false>* w, const X& x) {
    Decoder<NT> decoders[2];
#pragma unroll
    for (int r = 0; r < 2; r++) decoders[r].prepare(w[r].scale);
#pragma unroll
    for (int eighth = 0; eighth < 8; eighth++) {
        uint4 b[NT];
#pragma unroll
        for (int j = 0; j < NT; j++) b[j] = x.read(j, eighth);
        u32 low = word(w[0].codes[eighth >> 2], eighth & 3), high = word(w[1].codes[eighth >> 2], eighth & 3);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            u32 a[4] = {decoders[0].pair(low, 2 * half), decoders[1].pair(high, 2 * half),
                        decoders[0].pair(low, 2 * half + 1), decoders[1].pair(high, 2 * half + 1)};
#pragma unroll
            for (int j = 0; j < NT; j++) mma(acc[j], a, half ? b[j].z : b[j].x, half ? b[j].w : b[j].y);
        }
    }
}

template <int NT, class X>
__device__ __forceinline__ void multiply(float (*acc)[4], const Block<true>* w, const X& x) {
#pragma unroll
    for (int eighth = 0; eighth < 8; eighth++) {
        uint4 b[NT];
#pragma unroll
        for (int j = 0; j < NT; j++) b[j] = x.read(j, eighth);
        const uint4 &low = w[0].values[eighth], &high = w[1].values[eighth];
        u32 a[4] = {low.x, high.x, low.y, high.y}, next[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
        for (int j = 0; j < NT; j++) {
            mma(acc[j], a, b[j].x, b[j].y);
            mma(acc[j], next, b[j].z, b[j].w);
        }
    }
}

// The tensor cores of four warps, from Hopper on: each has 16 rows of weights in its registers, and x is read from shared memory
// once for all four. c[j] is as in `mma`.
template <int NT>
__device__ __forceinline__ void mma_together(float (*c)[4], const u32* a, u64 x);

template <>
__device__ __forceinline__ void mma_together<4>(float (*c)[4], const u32* a, u64 x) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, "
        "{%16,%17,%18,%19}, %20, 1, 1, 1, 0;"
        : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]),
          "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]),
          "+f"(c[3][2]), "+f"(c[3][3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(x)
        : "memory");
}

template <>
__device__ __forceinline__ void mma_together<8>(float (*c)[4], const u32* a, u64 x) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
        "{%32,%33,%34,%35}, %36, 1, 1, 1, 0;"
        : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]),
          "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]),
          "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]),
          "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]), "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]),
          "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(x)
        : "memory");
}

// What was written into registers before is there for the products that follow.
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Ends a group of products, of which those before it are waited for.
__device__ __forceinline__ void end_products() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
}

__device__ __forceinline__ void wait_for_products() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }

// A chunk of x for four warps, [NT][8] times four matrices of 8 x 8 elements, for which `place_of_x` in kernel_parts.py lays x out.
struct Together {
    const uint4* chunk;

    // Tells the tensor cores where the two matrices lie that are half an eighth of a tile: 128 bytes apart, and so in each tile of
    // 4096 bytes. PTX ISA, "Matrix Descriptor Format" of wgmma, without swizzling.
    __device__ __forceinline__ u64 half_of(int eighth, int half) const {
        u32 at = (u32)__cvta_generic_to_shared(chunk + eighth * 32 + half * 16);
        return (u64)(at >> 4) | (u64)(128 >> 4) << 16 | (u64)(4096 >> 4) << 32;
    }

    // Of 16, of which four belong to each block of a chunk.
    static __device__ __forceinline__ u32 bytes(int, int left) { return min(4 * left, 16); }

    // The tensor cores read what a thread has written once it has called this.
    static __device__ __forceinline__ void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
};

template <int NT>
__device__ __forceinline__ void multiply(float (*acc)[4], const Block<false>* w, const Together& x) {
    Decoder<NT> decoders[2];
#pragma unroll
    for (int r = 0; r < 2; r++) decoders[r].prepare(w[r].scale);
#pragma unroll
    for (int eighth = 0; eighth < 8; eighth++) {
        u32 low = word(w[0].codes[eighth >> 2], eighth & 3), high = word(w[1].codes[eighth >> 2], eighth & 3), a[2][4];
#pragma unroll
        for (int at = 0; at < 4; at++) {
            a[at >> 1][2 * (at & 1)] = decoders[0].pair(low, at);
            a[at >> 1][2 * (at & 1) + 1] = decoders[1].pair(high, at);
        }
        begin_products();
        mma_together<NT>(acc, a[0], x.half_of(eighth, 0));
        mma_together<NT>(acc, a[1], x.half_of(eighth, 1));
        end_products();
    }
    wait_for_products();
}

template <int NT>
__device__ __forceinline__ void multiply(float (*acc)[4], const Block<true>* w, const Together& x) {
    begin_products();
#pragma unroll
    for (int eighth = 0; eighth < 8; eighth++) {
        const uint4 &low = w[0].values[eighth], &high = w[1].values[eighth];
        u32 a[4] = {low.x, high.x, low.y, high.y}, next[4] = {low.z, high.z, low.w, high.w};
        mma_together<NT>(acc, a, x.half_of(eighth, 0));
        mma_together<NT>(acc, next, x.half_of(eighth, 1));
    }
    end_products();
    wait_for_products();
}

// Where 16 rows of a weight lie.
struct Rows {
    const void* weight;
    const float* scales;
    int first, count;  // rows at and after `count` are not there
};

// A tile of 16 weight rows: the eight of each half. Rows at and after `count` are not there.
struct Halves {
    const void* weight[2];
    const float* scales[2];
    int first[2], count;
};

__device__ __forceinline__ Halves halves_of(const Rows& rows) {
    return {{rows.weight, rows.weight}, {rows.scales, rows.scales}, {rows.first, rows.first + 8}, rows.count};
}

template <bool DENSE>
__device__ __forceinline__ void load(Block<DENSE>* w, const Halves& rows, int block, int end, int blocks) {
    int g = (threadIdx.x & 31) >> 2;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = rows.first[r] + g;
        if (block < end && row < rows.count)
            w[r].load(rows.weight[r], rows.scales[r], row, block, blocks);
        else
            w[r].clear();
    }
}

// The same chunk of x for several tiles of weights.
template <int NT>
struct FromRegisters {
    const uint4 (&held)[NT][8];

    __device__ __forceinline__ uint4 read(int j, int eighth) const { return held[j][eighth]; }
};

// The products of `count` tiles of weights with at most 8 NT rows of x, over the blocks begin to end of K. The block's warps are
// groups of `sharing`, which share K; each group takes every so many tiles, and the next weights are on their way while those
// before them are multiplied. The sums of member w for element (row, m) of tile i are put at sums[i][w][row][m], [count][sharing]
// [16][8 NT]. before, after: begin to copy what else is needed at the end, before the previous kernel is done and after it.
template <int NT, bool DENSE, class Tiles, class Before, class After>
__device__ __forceinline__ void accumulate(float* sums, const Tiles& tiles, int count, int sharing, const uint4* x, int M,
                                           int K, int begin, int end, const Before& before, const After& after) {
    int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, warp = threadIdx.x >> 5;
    int member = warp % sharing, groups = (blockDim.x >> 5) / sharing, i = warp / sharing;
    int blocks = K >> 6, first = begin + member * 4 + t, block = first, held = -1;
    end = min(end, blocks);
    bool is_there = first - t < end && i < count;
    let_next_begin();
    Block<DENSE> w[2];
    if (is_there) load<DENSE>(w, tiles.at(i), block, end, blocks);
    before();
    if (!DENSE) fill_pairs();
    wait_for_previous();
    after();
    uint4 rows[NT][8];
    float acc[NT][4] = {};
    while (is_there) {
        bool is_last = block - t + sharing * 4 >= end;
        int next_i = is_last ? i + groups : i, next_block = is_last ? first : block + sharing * 4;
        Block<DENSE> next[2];
        is_there = next_i < count;
        if (!DENSE && is_there) load<DENSE>(next, tiles.at(next_i), next_block, end, blocks);
        __syncwarp();
        FromGlobal from{x, 0, (M + 7) >> 3, block, blocks};
        if (DENSE) {  // whose weights leave no registers for x
            multiply<NT>(acc, w, from);
        } else {
            if (block != held) {
#pragma unroll
                for (int at = 0; at < 8 * NT; at++) rows[at % NT][at / NT] = from.read(at % NT, at / NT);
                held = block;
            }
            multiply<NT>(acc, w, FromRegisters<NT>{rows});
        }
        if (DENSE && is_there) load<DENSE>(next, tiles.at(next_i), next_block, end, blocks);
        if (is_last) {
            float* to = sums + (long)(i * sharing + member) * 16 * 8 * NT;
#pragma unroll
            for (int j = 0; j < NT; j++)
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    to[((g + (c >> 1) * 8) * NT + j) * 8 + 2 * t + (c & 1)] = acc[j][c];
                    acc[j][c] = 0.0f;
                }
        }
        w[0] = next[0], w[1] = next[1];
        i = next_i, block = next_block;
    }
    if (first - t >= end)  // the last blocks of K may be fewer than warps
        for (; i < count; i += groups)
            for (int at = lane; at < 16 * 8 * NT; at += 32) sums[(long)(i * sharing + member) * 16 * 8 * NT + at] = 0.0f;
    wait_for_copies();
    __syncthreads();
}

// Element `at` of [16][8 NT] of a tile, over its warps.
template <int NT>
__device__ __forceinline__ float summed(const float* sums, int tile, int sharing, int at) {
    float total = 0.0f;
    for (int w = 0; w < sharing; w++) total += sums[(long)(tile * sharing + w) * 16 * 8 * NT + at];
    return total;
}

// Tiles of 16 rows of up to three weights side by side, which end at end0, end1 and N. No tile belongs to two of them.
__device__ __forceinline__ int tiles_of(int N, int end0, int end1) {
    return ((end0 + 15) >> 4) + ((end1 - end0 + 15) >> 4) + ((N - end1 + 15) >> 4);
}

// The rows of such a tile, and the column of the first of them.
__device__ __forceinline__ Rows rows_of(int tile, int* column, const void* w0, const void* w1, const void* w2, const float* s0,
                                        const float* s1, const float* s2, int N, int end0, int end1) {
    int tiles0 = (end0 + 15) >> 4, tiles1 = tiles0 + ((end1 - end0 + 15) >> 4);
    int segment = tile < tiles0 ? 0 : tile < tiles1 ? 1 : 2;
    int begin = segment == 0 ? 0 : segment == 1 ? end0 : end1, end = segment == 0 ? end0 : segment == 1 ? end1 : N;
    int first = (tile - (segment == 0 ? 0 : segment == 1 ? tiles0 : tiles1)) * 16;
    *column = begin + first;
    return {segment == 0 ? w0 : segment == 1 ? w1 : w2, segment == 0 ? s0 : segment == 1 ? s1 : s2, first, end - begin};
}

// Tiles of weights side by side, from `first` on.
struct Columns {
    const void *w0, *w1, *w2;
    const float *s0, *s1, *s2;
    int first, N, end0, end1;

    __device__ __forceinline__ Rows rows(int i, int* column) const {
        return rows_of(first + i, column, w0, w1, w2, s0, s1, s2, N, end0, end1);
    }

    __device__ __forceinline__ Halves at(int i) const {
        int column;
        return halves_of(rows(i, &column));
    }
};

struct Nothing {
    __device__ __forceinline__ void operator()() const {}
};

// Tiles of one weight, from `first` on.
struct Whole {
    const void* weight;
    int first, count;

    __device__ __forceinline__ Halves at(int i) const { return halves_of(Rows{weight, nullptr, (first + i) * 16, count}); }
};

// out[split, m, n]: up to three weights side by side, which end at end0, end1 and N, then x A^T of R adapter rows. A block has
// `most` tiles, of weights or of adapters.
template <int NT, bool DENSE>
__global__ void __launch_bounds__(384) project(const uint4* x, const void* w0, const void* w1, const void* w2,
                                               const float* s0, const float* s1, const float* s2, const void* lora_a,
                                               float* out, int M, int K, int N, int R, int end0, int end1,
                                               int chunks, int most, int sharing) {
    extern __shared__ float sums[];
    int width = N + R, all = tiles_of(N, end0, end1), of_weights = (all + most - 1) / most;
    int from = blockIdx.z * chunks * 4, to = from + chunks * 4, adapter = blockIdx.x - of_weights;
    int first = (adapter < 0 ? blockIdx.x : adapter) * most, count = min(most, (adapter < 0 ? all : (R + 15) >> 4) - first);
    Columns columns{w0, w1, w2, s0, s1, s2, first, N, end0, end1};
    if (adapter < 0)
        accumulate<NT, DENSE>(sums, columns, count, sharing, x, M, K, from, to, Nothing{}, Nothing{});
    else
        accumulate<NT, true>(sums, Whole{lora_a, first, R}, count, sharing, x, M, K, from, to, Nothing{}, Nothing{});
    out += (long)blockIdx.z * M * width;
    for (int at = threadIdx.x; at < count * 16 * 8 * NT; at += blockDim.x) {
        int n = at % 16, m = at / 16 % (8 * NT), i = at / (16 * 8 * NT), column = N + (first + i) * 16;
        int left = R - (first + i) * 16;
        if (adapter < 0) {
            Rows rows = columns.rows(i, &column);
            left = rows.count - rows.first;
        }
        if (m < M && n < left) out[(long)m * width + column + n] = summed<NT>(sums, i, sharing, n * 8 * NT + m);
    }
}

// The gate's activation. KIND 0: SiLU; 1: GELU by tanh, for g / 2 * (1 + tanh(y)) = g * sigmoid(2 y).
template <int KIND>
__device__ __forceinline__ float activation(float g) {
    if (KIND == 0) return g / (1.0f + __expf(-g));
    return g / (1.0f + __expf(-1.5957691216057308f * (g + 0.044715f * g * g * g)));
}

__device__ __forceinline__ float widened(u16 value) { return __uint_as_float((u32)value << 16); }

// Tiles of eight rows of gate and the same of up, from `first` on.
struct Pairs {
    const void *gate, *up;
    const float *gate_scales, *up_scales;
    int first, count;

    __device__ __forceinline__ Halves at(int i) const {
        int row = (first + i) * 8;
        return {{gate, up}, {gate_scales, up_scales}, {row, row}, count};
    }
};

// Copies of what the adapters of a block's columns need: 8 values of B each, [count][2][rank], and rows of x A^T, [M][2][rank].
struct OwnB {
    uint4* to;
    const u16* lora_b;
    int count, rank, first, N;

    __device__ __forceinline__ void operator()() const {
        for (int at = threadIdx.x; at < count * 2 * rank; at += blockDim.x) {
            int r = at % rank, side = at / rank % 2, i = at / (2 * rank);
            copy(to + at, (const uint4*)(lora_b + (long)r * 2 * N + side * N + (first + i) * 8));
        }
    }
};

struct OwnInner {
    float* to;
    const float* inner;
    int M, R, rank;

    __device__ __forceinline__ void operator()() const {
        for (int at = threadIdx.x * 4; at < M * 2 * rank; at += blockDim.x * 4) {
            int r = at % (2 * rank), m = at / (2 * rank);
            copy((uint4*)(to + at), (const uint4*)(inner + m * R + (r < rank ? r : R - 2 * rank + r)));
        }
    }
};

// activation(x Wg^T) * (x Wu^T) in bfloat16, laid out as the next product's x. With adapters of a rank that is not 0 but a multiple
// of 4, inner is their scaled x A^T, [M, R], of which the last `rank` columns belong to up, and lora_b their B, [rank, 2 N]. A
// block has `most` tiles of eight columns. Its shared memory: sums, then what `OwnB` and `OwnInner` copy.
template <int NT, bool DENSE, int KIND>
__global__ void __launch_bounds__(NT == 1 && !DENSE ? 576 : 384)
    gate_up(const uint4* x, const void* gate, const void* up, const float* gate_scales, const float* up_scales,
            const float* inner, const u16* lora_b, u16* out, int M, int K, int N, int R, int rank, int most, int sharing) {
    extern __shared__ float sums[];
    int first = blockIdx.x * most, count = min(most, (N >> 3) - first);
    uint4* own_b = (uint4*)(sums + most * sharing * 16 * 8 * NT);
    float* own_inner = (float*)(own_b + most * 2 * rank);
    accumulate<NT, DENSE>(sums, Pairs{gate, up, gate_scales, up_scales, first, N}, count, sharing, x, M, K, 0, K,
                          OwnB{own_b, lora_b, count, rank, first, N}, OwnInner{own_inner, inner, M, R, rank});
    for (int at = threadIdx.x; at < count * 8 * 8 * NT; at += blockDim.x) {
        int n = at % 8, m = at / 8 % (8 * NT), i = at / (8 * 8 * NT);
        if (m >= M) continue;
        float g = summed<NT>(sums, i, sharing, n * 8 * NT + m), u = summed<NT>(sums, i, sharing, (8 + n) * 8 * NT + m);
        const float* t = own_inner + m * 2 * rank;
        const u16* b = (const u16*)(own_b + i * 2 * rank) + n;
        for (int r = 0; r < rank; r++) g += t[r] * widened(b[r * 8]), u += t[rank + r] * widened(b[(rank + r) * 8]);
        float found = rounded(activation<KIND>(rounded(g))) * rounded(u);
        out[place(m, (first + i) * 8 + n, N)] = (u16)(pack(found, found) & 0xffff);
    }
}

// Begins to copy chunk `chunk` of NT tiles of x, [NT][8][32] of 16 bytes.
template <int NT, class X>
__device__ __forceinline__ void stage(uint4* to, const uint4* x, int tile, int tiles, int chunk, int blocks) {
    int chunks = (blocks + 3) >> 2;
    for (int at = threadIdx.x; at < NT * 256; at += blockDim.x) {
        int j = at >> 8;
        u32 bytes = tile + j < tiles ? X::bytes(at, blocks - chunk * 4) : 0;
        copy(to + at, bytes ? x + ((long)(tile + j) * chunks + chunk) * 256 + (at & 255) : x, bytes);
    }
}

// A tile of 16 weight rows for each warp, all over the chunks begin to end of the same x.
template <int NT, bool DENSE, class X>
__device__ __forceinline__ void share(float (*acc)[4], const Rows& rows, const uint4* x, uint4* staged, int tile, int M,
                                      int K, int begin, int end) {
    int t = threadIdx.x & 3, blocks = K >> 6, tiles = (M + 7) >> 3;
    end = min(end, (blocks + 3) >> 2);
    Halves halves = halves_of(rows);
    Block<DENSE> w[2];
    let_next_begin();
    if (begin < end) load<DENSE>(w, halves, begin * 4 + t, blocks, blocks);
    wait_for_previous();
    if (begin < end) stage<NT, X>(staged, x, tile, tiles, begin, blocks);
    for (int chunk = begin; chunk < end; chunk++) {
        uint4 *now = staged + ((chunk - begin) & 1) * NT * 256, *later = staged + ((chunk - begin + 1) & 1) * NT * 256;
        wait_for_copies();
        X::publish();
        __syncthreads();  // this chunk is there for all, and the one before it has been read by all
        bool is_last = chunk + 1 == end;
        if (!is_last) stage<NT, X>(later, x, tile, tiles, chunk + 1, blocks);
        Block<DENSE> next[2];
        if (!DENSE && !is_last) load<DENSE>(next, halves, chunk * 4 + 4 + t, blocks, blocks);
        multiply<NT>(acc, w, X{now});
        if (DENSE && !is_last) load<DENSE>(next, halves, chunk * 4 + 4 + t, blocks, blocks);
        if (is_last) break;
        w[0] = next[0], w[1] = next[1];
    }
}

// Writes a warp's sums of the 16 columns from `first` on, of which those at and after `last` are not there.
template <int NT>
__device__ __forceinline__ void put(float* out, float (*acc)[4], int first, int m0, int M, int last, int width) {
    int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int j = 0; j < NT; j++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
            int m = m0 + j * 8 + 2 * t + (c & 1), n = first + g + 8 * (c >> 1);
            if (m < M && n < last) out[(long)m * width + n] = acc[j][c];
        }
}

// `project` for many rows: a block has as many tiles of 16 weight rows as warps, and reads x once for all of them. X: `FromShared`,
// or `Together` with warps in fours.
template <int NT, bool DENSE, class X>
__global__ void __launch_bounds__(DENSE ? 256 : 384) project_many(
    const uint4* x, const void* w0, const void* w1, const void* w2, const float* s0, const float* s1, const float* s2,
    const void* lora_a, float* out, int M, int K, int N, int R, int end0, int end1, int chunks) {
    extern __shared__ uint4 staged[];
    int warps = blockDim.x >> 5, width = N + R, tiles = tiles_of(N, end0, end1), of_weights = (tiles + warps - 1) / warps;
    bool is_adapter = blockIdx.x >= of_weights;
    int tile = (blockIdx.x - (is_adapter ? of_weights : 0)) * warps + (threadIdx.x >> 5);
    int m0 = blockIdx.y * 8 * NT, from = blockIdx.z * chunks, to = from + chunks;
    out += (long)blockIdx.z * M * width;
    // Each has sums of its own: shared, they cost the other a sixth of its time.
    if (is_adapter) {
        float acc[NT][4] = {};
        share<NT, true, X>(acc, Rows{lora_a, s0, tile * 16, R}, x, staged, m0 >> 3, M, K, from, to);
        put<NT>(out, acc, N + tile * 16, m0, M, width, width);
    } else {
        float acc[NT][4] = {};
        Rows rows = {w0, s0, 0, 0};
        int column = 0;
        if (tile < tiles) rows = rows_of(tile, &column, w0, w1, w2, s0, s1, s2, N, end0, end1);
        share<NT, DENSE, X>(acc, rows, x, staged, m0 >> 3, M, K, from, to);
        put<NT>(out, acc, column, m0, M, column + rows.count - rows.first, width);
    }
}
