// Products of a few rows with a large weight, y[M, N] = x[M, K] W[N, K]^T, for the decode step: bound by reading W.
//
// A weight never leaves registers: each lane reads whole blocks of 64 of the rows that it holds in the tensor cores'
// fragment, and because a sum does not mind its order, those 64 need not be moved to other lanes. With few rows of x, warps of
// a block share K; with many, reading x would cost more than reading W, so they share x instead. Blocks may share K too, and
// all sums are in a fixed order.

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
};

// Adds the products of MT tiles of 16 weight rows with NT tiles of 8 rows of x, over the blocks of one chunk of 256.
template <int MT, int NT, class X>
__device__ __forceinline__ void multiply(float (*acc)[NT][4], const Block<false> (*w)[2], const X& x) {
    Decoder<NT> decoders[MT][2];
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int r = 0; r < 2; r++) decoders[i][r].prepare(w[i][r].scale);
#pragma unroll
    for (int eighth = 0; eighth < 8; eighth++) {
        uint4 b[NT];
#pragma unroll
        for (int j = 0; j < NT; j++) b[j] = x.read(j, eighth);
#pragma unroll
        for (int i = 0; i < MT; i++) {
            u32 low = word(w[i][0].codes[eighth >> 2], eighth & 3), high = word(w[i][1].codes[eighth >> 2], eighth & 3);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                u32 a[4] = {decoders[i][0].pair(low, 2 * half), decoders[i][1].pair(high, 2 * half),
                            decoders[i][0].pair(low, 2 * half + 1), decoders[i][1].pair(high, 2 * half + 1)};
#pragma unroll
                for (int j = 0; j < NT; j++) mma(acc[i][j], a, half ? b[j].z : b[j].x, half ? b[j].w : b[j].y);
            }
        }
    }
}

template <int MT, int NT, class X>
__device__ __forceinline__ void multiply(float (*acc)[NT][4], const Block<true> (*w)[2], const X& x) {
#pragma unroll
    for (int eighth = 0; eighth < 8; eighth++) {
        uint4 b[NT];
#pragma unroll
        for (int j = 0; j < NT; j++) b[j] = x.read(j, eighth);
#pragma unroll
        for (int i = 0; i < MT; i++) {
            const uint4 &low = w[i][0].values[eighth], &high = w[i][1].values[eighth];
            u32 a[4] = {low.x, high.x, low.y, high.y}, next[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
            for (int j = 0; j < NT; j++) {
                mma(acc[i][j], a, b[j].x, b[j].y);
                mma(acc[i][j], next, b[j].z, b[j].w);
            }
        }
    }
}

// Where 16 rows of a weight lie.
struct Rows {
    const void* weight;
    const float* scales;
    int first, count;  // rows at and after `count` are not there
};

template <int MT, bool DENSE>
__device__ __forceinline__ void load(Block<DENSE> (*w)[2], const Rows* rows, int block, int end, int blocks) {
    int g = (threadIdx.x & 31) >> 2;
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int row = rows[i].first + g + 8 * r;
            if (block < end && row < rows[i].count)
                w[i][r].load(rows[i].weight, rows[i].scales, row, block, blocks);
            else
                w[i][r].clear();
        }
}

// This warp's part of the blocks begin to end of K, for MT tiles. The next chunk's weights are on their way while this
// one's are multiplied.
template <int MT, int NT, bool DENSE>
__device__ __forceinline__ void accumulate(float (*acc)[NT][4], const Rows* rows, const uint4* x, int tile, int M, int K,
                                           int begin, int end) {
    int t = threadIdx.x & 3, stride = (blockDim.x >> 5) * 4, blocks = K >> 6, tiles = (M + 7) >> 3;
    int block = begin + (threadIdx.x >> 5) * 4 + t;
    end = min(end, blocks);
    let_next_begin();
    if (!DENSE && NT == 1) {
        if (threadIdx.x < 16) levels()[threadIdx.x] = LEVELS[threadIdx.x];
        __syncthreads();
    }
    Block<DENSE> w[MT][2];
    if (block - t < end) load<MT, DENSE>(w, rows, block, end, blocks);
    wait_for_previous();
    for (; block - t < end; block += stride) {
        Block<DENSE> next[MT][2];
        if (!DENSE) load<MT, DENSE>(next, rows, block + stride, end, blocks);
        __syncwarp();
        multiply<MT, NT>(acc, w, FromGlobal{x, tile, tiles, block, blocks});
        if (DENSE) load<MT, DENSE>(next, rows, block + stride, end, blocks);
#pragma unroll
        for (int i = 0; i < MT; i++) w[i][0] = next[i][0], w[i][1] = next[i][1];
    }
}

// Sum over the block's warps: value(i, row, m) of tile i is then in `shared`, [MT][16][8 NT].
template <int MT, int NT>
__device__ __forceinline__ void reduce(float (*acc)[NT][4], float* shared) {
    int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    const int size = MT * 16 * NT * 8;
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int j = 0; j < NT; j++)
#pragma unroll
            for (int c = 0; c < 4; c++)
                shared[warp * size + ((i * 16 + g + (c >> 1) * 8) * NT + j) * 8 + 2 * t + (c & 1)] = acc[i][j][c];
    __syncthreads();
    for (int at = threadIdx.x; at < size; at += blockDim.x) {
        float total = 0.0f;
        for (int w = 0; w < warps; w++) total += shared[w * size + at];
        shared[at] = total;
    }
    __syncthreads();
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

// out[split, m, n]: up to three weights side by side, which end at end0, end1 and N, then x A^T of R adapter rows.
template <int NT, bool DENSE>
__global__ void __launch_bounds__(384) project(const uint4* x, const void* w0, const void* w1, const void* w2,
                                               const float* s0, const float* s1, const float* s2, const void* lora_a,
                                               float* out, int M, int K, int N, int R, int end0, int end1,
                                               int chunks) {
    extern __shared__ float shared[];
    float acc[1][NT][4] = {};
    int m0 = blockIdx.y * 8 * NT, width = N + R, column, left;
    int from = blockIdx.z * chunks * 4, to = from + chunks * 4, adapter = blockIdx.x - tiles_of(N, end0, end1);
    if (adapter < 0) {
        Rows rows = rows_of(blockIdx.x, &column, w0, w1, w2, s0, s1, s2, N, end0, end1);
        left = rows.count - rows.first;
        accumulate<1, NT, DENSE>(acc, &rows, x, m0 >> 3, M, K, from, to);
    } else {
        Rows rows = {lora_a, s0, adapter * 16, R};
        column = N + adapter * 16, left = R - adapter * 16;
        accumulate<1, NT, true>(acc, &rows, x, m0 >> 3, M, K, from, to);
    }
    reduce<1, NT>(acc, shared);
    out += (long)blockIdx.z * M * width;
    for (int at = threadIdx.x; at < 16 * 8 * NT; at += blockDim.x) {
        int n = at % 16, m = at / 16;
        if (m0 + m < M && n < left) out[(long)(m0 + m) * width + column + n] = shared[n * 8 * NT + m];
    }
}

// The gate's activation. KIND 0: SiLU; 1: GELU by tanh, for g / 2 * (1 + tanh(y)) = g * sigmoid(2 y).
template <int KIND>
__device__ __forceinline__ float activation(float g) {
    if (KIND == 0) return g / (1.0f + __expf(-g));
    return g / (1.0f + __expf(-1.5957691216057308f * (g + 0.044715f * g * g * g)));
}

const int MOST_RANK = 64;

__device__ __forceinline__ float widened(u16 value) { return __uint_as_float((u32)value << 16); }

// activation(x Wg^T) * (x Wu^T) in bfloat16, laid out as the next product's x. With adapters of a rank that is not 0, inner is
// their scaled x A^T, [M, R], of which the last `rank` columns belong to up, and lora_b their B, [rank, 2 N].
template <int NT, bool DENSE, int KIND>
__global__ void __launch_bounds__(384) gate_up(const uint4* x, const void* gate, const void* up, const float* gate_scales,
                                               const float* up_scales, const float* inner, const u16* lora_b, u16* out, int M,
                                               int K, int N, int R, int rank) {
    extern __shared__ float shared[];
    __shared__ u16 own_b[2][MOST_RANK][16];
    float acc[2][NT][4] = {};
    int first = blockIdx.x * 16, m0 = blockIdx.y * 8 * NT;
    for (int at = threadIdx.x; at < 2 * 16 * rank; at += blockDim.x) {  // seen by all after `reduce`
        int n = at % 16, r = at / 16 % rank, side = at / (16 * rank);
        own_b[side][r][n] = lora_b[(long)r * 2 * N + side * N + first + n];
    }
    Rows rows[2] = {{gate, gate_scales, first, N}, {up, up_scales, first, N}};
    accumulate<2, NT, DENSE>(acc, rows, x, m0 >> 3, M, K, 0, K);
    reduce<2, NT>(acc, shared);
    for (int at = threadIdx.x; at < 16 * 8 * NT; at += blockDim.x) {
        int n = at % 16, m = at / 16;
        if (m0 + m >= M) continue;
        float g = shared[n * 8 * NT + m], u = shared[(16 + n) * 8 * NT + m];
        const float* t = inner + (long)(m0 + m) * R;
        for (int r = 0; r < rank; r++) g += t[r] * widened(own_b[0][r][n]), u += t[R - rank + r] * widened(own_b[1][r][n]);
        float found = rounded(activation<KIND>(rounded(g))) * rounded(u);
        out[place(m0 + m, first + n, N)] = (u16)(pack(found, found) & 0xffff);
    }
}

// 16 bytes into shared memory without passing through registers; zeros where there are none.
__device__ __forceinline__ void copy(uint4* to, const uint4* from, bool is_there) {
    u32 at = (u32)__cvta_generic_to_shared(to), bytes = is_there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes) : "memory");
}

__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Begins to copy chunk `chunk` of NT tiles of x, [NT][8][32] of 16 bytes.
template <int NT>
__device__ __forceinline__ void stage(uint4* to, const uint4* x, int tile, int tiles, int chunk, int blocks) {
    int chunks = (blocks + 3) >> 2;
    for (int at = threadIdx.x; at < NT * 256; at += blockDim.x) {
        int j = at >> 8, lane = at & 31;
        bool is_there = tile + j < tiles && chunk * 4 + (lane & 3) < blocks;
        copy(to + at, is_there ? x + ((long)(tile + j) * chunks + chunk) * 256 + (at & 255) : x, is_there);
    }
}

// A tile of 16 weight rows for each warp, all over the chunks begin to end of the same x.
template <int NT, bool DENSE>
__device__ __forceinline__ void share(float (*acc)[NT][4], const Rows& rows, const uint4* x, uint4* staged, int tile, int M,
                                      int K, int begin, int end) {
    int t = threadIdx.x & 3, blocks = K >> 6, tiles = (M + 7) >> 3;
    end = min(end, (blocks + 3) >> 2);
    Block<DENSE> w[1][2];
    let_next_begin();
    if (begin < end) load<1, DENSE>(w, &rows, begin * 4 + t, blocks, blocks);
    wait_for_previous();
    if (begin < end) stage<NT>(staged, x, tile, tiles, begin, blocks);
    for (int chunk = begin; chunk < end; chunk++) {
        uint4 *now = staged + ((chunk - begin) & 1) * NT * 256, *later = staged + ((chunk - begin + 1) & 1) * NT * 256;
        wait_for_copies();
        __syncthreads();  // this chunk is there for all, and the one before it has been read by all
        bool is_last = chunk + 1 == end;
        if (!is_last) stage<NT>(later, x, tile, tiles, chunk + 1, blocks);
        Block<DENSE> next[1][2];
        if (!DENSE && !is_last) load<1, DENSE>(next, &rows, chunk * 4 + 4 + t, blocks, blocks);
        multiply<1, NT>(acc, w, FromShared{now});
        if (DENSE && !is_last) load<1, DENSE>(next, &rows, chunk * 4 + 4 + t, blocks, blocks);
        if (is_last) break;
        w[0][0] = next[0][0], w[0][1] = next[0][1];
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

// `project` for many rows: a block has as many tiles of 16 weight rows as warps, and reads x once for all of them.
template <int NT, bool DENSE>
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
        float acc[1][NT][4] = {};
        share<NT, true>(acc, Rows{lora_a, s0, tile * 16, R}, x, staged, m0 >> 3, M, K, from, to);
        put<NT>(out, acc[0], N + tile * 16, m0, M, width, width);
    } else {
        float acc[1][NT][4] = {};
        Rows rows = {w0, s0, 0, 0};
        int column = 0;
        if (tile < tiles) rows = rows_of(tile, &column, w0, w1, w2, s0, s1, s2, N, end0, end1);
        share<NT, DENSE>(acc, rows, x, staged, m0 >> 3, M, K, from, to);
        put<NT>(out, acc[0], column, m0, M, column + rows.count - rows.first, width);
    }
}
