// Blocks of 64 weights of a row: how they are read, and how they become the tensor cores' operand.
//
// W is NF4 in bitsandbytes' layout (two codes a byte, first in the high nibble; a float32 scale for each 64 of a row) or
// bfloat16.

#pragma once

typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned long long u64;

__device__ __constant__ float LEVELS[16] = {
    -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f, -0.28444138169288635f,
    -0.18477343022823334f, -0.09105003625154495f, 0.0f, 0.07958029955625534f, 0.16093020141124725f,
    0.24611230194568634f, 0.33791524171829224f, 0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f};

// Loads that stay where they are written: the compiler would move those of the next chunk behind this one's products.
__device__ __forceinline__ uint4 fetch(const void* at) {
    uint4 found;
    asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(found.x), "=r"(found.y), "=r"(found.z), "=r"(found.w) : "l"(at) : "memory");
    return found;
}

__device__ __forceinline__ float fetch(const float* at) {
    float found;
    asm volatile("ld.global.f32 %0, [%1];" : "=f"(found) : "l"(at) : "memory");
    return found;
}

// Two floats to bfloat16, the first in the low half.
__device__ __forceinline__ u32 pack(float first, float second) {
    u32 found;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(found) : "f"(second), "f"(first));
    return found;
}

__device__ __forceinline__ u32 prmt(u32 a, u32 b, u32 selector) {
    u32 found;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(found) : "r"(a), "r"(b), "r"(selector));
    return found;
}

// Weights of a block of 64 as the trainer computes with them: level times scale in float32, then rounded. `pair` gives two
// neighbours, the codes of byte `at` of a word. Which way is faster was measured: for up to two tiles of 8 rows of x a look-up in
// shared memory; for more tiles it waits, because x is read from there too, and the following needs none.
//
// The 16 values that the block can have are made in registers: their low bytes and their high bytes, four a register. A code
// picks its bytes by permutations, and four codes are picked for at a time.
template <int NT>
struct Decoder {
    u32 low[4], high[4];

    __device__ __forceinline__ void prepare(float scale) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 a = pack(LEVELS[4 * i] * scale, LEVELS[4 * i + 1] * scale);
            u32 b = pack(LEVELS[4 * i + 2] * scale, LEVELS[4 * i + 3] * scale);
            low[i] = prmt(a, b, 0x6420);
            high[i] = prmt(a, b, 0x7531);
        }
    }

    __device__ __forceinline__ u32 pair(u32 codes, int at) const {
        // A permutation reads the low half of its selector alone, so masks are made for all eight codes of a word.
        u32 place = (codes & 0x77777777) >> (16 * (at >> 1));
        u32 half = (((codes >> 1) & 0x44444444) | 0x32103210) >> (16 * (at >> 1));
        u32 l = prmt(prmt(low[0], low[1], place), prmt(low[2], low[3], place), half);
        u32 h = prmt(prmt(high[0], high[1], place), prmt(high[2], high[3], place), half);
        return prmt(l, h, at & 1 ? 0x6273 : 0x4051);
    }
};

// The levels of both codes of each byte, [256][16]: a copy for each lane of half a warp, so that lanes that look up different
// bytes do not wait for one another.
__device__ __forceinline__ float2* pairs() {
    __shared__ float2 found[256 * 16];
    return found;
}

// To be called by all threads of a block.
__device__ __forceinline__ void fill_pairs() {
    __shared__ float levels[16];
    if (threadIdx.x < 16) levels[threadIdx.x] = LEVELS[threadIdx.x];
    __syncthreads();
    for (int at = threadIdx.x; at < 256 * 16; at += blockDim.x)
        pairs()[at] = make_float2(levels[at >> 8], levels[(at >> 4) & 15]);
    __syncthreads();
}

struct LookUp {
    float scale;

    __device__ __forceinline__ void prepare(float value) { scale = value; }

    __device__ __forceinline__ u32 pair(u32 codes, int at) const {
        u32 place = (at ? codes >> (8 * at - 7) : codes << 7) & 0x7f80;  // 128 bytes of copies for each value of a byte
        float2 found = *(const float2*)((const char*)pairs() + (threadIdx.x & 15) * sizeof(float2) + place);
        return pack(found.x * scale, found.y * scale);
    }
};

template <>
struct Decoder<1> : LookUp {};

template <>
struct Decoder<2> : LookUp {};

// One row's block of 64: codes (32 bytes) and scale, or 64 bfloat16.
template <bool DENSE>
struct Block;

template <>
struct Block<false> {
    uint4 codes[2];
    float scale;

    __device__ __forceinline__ void load(const void* weight, const float* scales, long row, int block, int blocks) {
        const uint4* at = (const uint4*)((const char*)weight + (row * blocks + block) * 32);
        codes[0] = fetch((const void*)at);
        codes[1] = fetch((const void*)(at + 1));
        scale = fetch(scales + row * blocks + block);
    }

    __device__ __forceinline__ void clear() {
        codes[0] = codes[1] = make_uint4(0, 0, 0, 0);
        scale = 0.0f;
    }
};

template <>
struct Block<true> {
    uint4 values[8];

    __device__ __forceinline__ void load(const void* weight, const float*, long row, int block, int blocks) {
        const uint4* at = (const uint4*)((const char*)weight + (row * blocks + block) * 128);
#pragma unroll
        for (int i = 0; i < 8; i++) values[i] = __ldg(at + i);
    }

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < 8; i++) values[i] = make_uint4(0, 0, 0, 0);
    }
};

__device__ __forceinline__ u32 word(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }
