// CUDA C++ on a processor, as far as the products of a decode step use it. Blocks follow one another, and the threads of a
// block are fibers: each runs until it waits for others, so every run takes the same order, and the order can be chosen.
//
// What a GPU leaves open is chosen badly. Shared memory begins as NaN. What the kernel before computes is NaN until a block
// has waited for it. A copy into shared memory, or a product of four warps, is made at once, or only when it is waited for. And of
// the threads that may go on, the first goes on, or the last. What is not known here does not compile.

#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

#define __CUDA_ARCH__ 900
#define __device__
#define __global__ static
#define __constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static __attribute__((section("block_shared")))  // for arrays of a fixed size

struct dim3 {
    unsigned x, y, z;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};

static dim3 threadIdx, blockIdx, blockDim, gridDim;

inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline int min(int a, int b) { return a < b ? a : b; }
inline float __expf(float value) { return std::exp(value); }

inline float __uint_as_float(unsigned bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

inline unsigned __float_as_uint(float value) {
    unsigned bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}

template <class T>
inline T __ldg(const T* at) {
    return *at;
}

// All arrays of a fixed size in shared memory lie between these, which the linker makes if there is one array at least.
extern "C" char __start_block_shared, __stop_block_shared;

inline char* one_byte() {
    __shared__ char found[1];
    return found;
}

namespace emulated {

const int WARP = 32, GROUP = 4 * WARP, NONE = 0xff, MOST_COLUMNS = 64;
const size_t STACK = 256 << 10, GUARD = 4096;

enum Wait { RUNS, FOR_BLOCK, FOR_WARP, FOR_PRODUCT, FOR_GROUP, FOR_PREVIOUS, ENDED };
const char* const WAITS[] = {"runs", "is in __syncthreads", "is in __syncwarp", "is in mma.sync", "is in wgmma.mma_async",
                             "is in griddepcontrol.wait", "has ended"};

struct Copy {
    char* to;
    const char* from;
    unsigned bytes;
};

// A lane's part of wgmma.mma_async.
struct Product {
    float* sums[MOST_COLUMNS / 2];
    unsigned a[4];
    uint64_t b;
    int columns, group;
    bool is_done;
};

struct Fiber {
    ucontext_t begin;
    jmp_buf here;
    std::unique_ptr<char[]> stack;
    Wait wait;
    bool has_begun;
    bool has_waited;  // for the kernel before
    std::vector<Copy> copies;
    float* sums[4];  // of mma.sync, then its operands
    unsigned a[4], b[2];
    std::vector<Product> products;
    int groups;  // of products that were ended
    bool may_multiply;  // what is in registers is there for wgmma
    std::vector<unsigned> unseen;  // where in shared memory it wrote what wgmma does not see yet
};

enum Role { NUMBER, WEIGHT, PREVIOUS, RESULT };

struct Argument {
    void* data;  // of a number: nullptr
    size_t bytes;
    int number, role;
    unsigned char* writes;  // of a result: how many blocks wrote each element
};

struct Kernel {
    const char* name;
    int most_threads;
    std::vector<size_t> elements;  // bytes of one where an argument is written, 1 where it is read, 0 where it is a number
    std::function<void(void* const*)> call;
};

template <class... A, size_t... I>
void call(void (*function)(A...), void* const* values, std::index_sequence<I...>) {
    function(*(A*)values[I]...);
}

template <class A>
constexpr size_t element() {
    if constexpr (std::is_pointer_v<A>) {
        using T = std::remove_pointer_t<A>;
        if constexpr (std::is_const_v<T>)
            return 1;
        else
            return sizeof(T);
    } else {
        static_assert(std::is_same_v<A, int>, "launches pass pointers and 32-bit integers");
        return 0;
    }
}

template <class... A>
Kernel kernel(const char* name, int most_threads, void (*function)(A...)) {
    return {name, most_threads, {element<A>()...},
            [function](void* const* values) { call(function, values, std::index_sequence_for<A...>{}); }};
}

std::vector<Kernel> kernels();

static std::vector<Fiber> fibers;
static jmp_buf scheduler;
static int current;
static std::function<void()> body;
static std::string failure;
static char* dynamic_begin;
static size_t dynamic_bytes;
static bool at_once;
static std::vector<bool> is_seen;  // by wgmma, of each 16 bytes of shared memory

[[gnu::format(printf, 1, 2)]] static void fail(const char* format, ...) {
    if (!failure.empty()) return;
    char text[512];
    va_list values;
    va_start(values, format);
    std::vsnprintf(text, sizeof text, format, values);
    va_end(values);
    failure = text;
}

// Jumps between stacks, because swapcontext asks the kernel each time.
[[gnu::noinline]] static void wait(Wait what) {
    Fiber& self = fibers[current];
    self.wait = what;
    if (!_setjmp(self.here)) _longjmp(scheduler, 1);
}

// Lets a thread go on until it waits.
[[gnu::noinline]] static void resume(Fiber& fiber) {
    if (_setjmp(scheduler)) return;
    if (fiber.has_begun) _longjmp(fiber.here, 1);
    fiber.has_begun = true;
    setcontext(&fiber.begin);
}

inline char* dynamic_shared() { return dynamic_begin; }

// The thread goes no further, and nor does its kernel.
[[noreturn]] static void stop() { _longjmp(scheduler, 1); }

static void enter() {
    body();
    if (!fibers[current].copies.empty()) fail("thread %d ends with copies that nobody has waited for", current);
    for (const Product& one : fibers[current].products)
        if (!one.is_done || one.group == fibers[current].groups) fail("thread %d ends in the middle of its products", current);
    fibers[current].wait = ENDED;
    stop();
}

inline float of_bfloat16(unsigned word, int half) { return __uint_as_float(half ? word & 0xffff0000u : word << 16); }

inline unsigned to_bfloat16(float value) {  // to nearest, ties to even
    unsigned bits = __float_as_uint(value);
    if (value != value) return 0x7fff;
    return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

// D = A B + C of m16n8k16: A and B in bfloat16, sums in float32. Which lane holds what is told in the PTX ISA, "Matrix
// Fragments for mma.m16n8k16 with floating point type".
static void multiply(Fiber* lanes) {
    float a[16][16], b[16][8];
    for (int lane = 0; lane < WARP; lane++) {
        int group = lane >> 2, member = lane & 3;
        for (int i = 0; i < 8; i++) {
            int row = i % 4 < 2 ? group : group + 8, column = member * 2 + (i & 1) + (i < 4 ? 0 : 8);
            a[row][column] = of_bfloat16(lanes[lane].a[i / 2], i & 1);
        }
        for (int i = 0; i < 4; i++) b[member * 2 + (i & 1) + (i < 2 ? 0 : 8)][group] = of_bfloat16(lanes[lane].b[i / 2], i & 1);
    }
    for (int lane = 0; lane < WARP; lane++) {
        int group = lane >> 2, member = lane & 3;
        for (int i = 0; i < 4; i++) {
            int row = i < 2 ? group : group + 8, column = member * 2 + (i & 1);
            float sum = 0.0f;
            for (int k = 0; k < 16; k++) sum += a[row][k] * b[k][column];
            *lanes[lane].sums[i] += sum;
        }
    }
}

// A row of a matrix in shared memory, in a place that wgmma sees.
static const char* seen(size_t at) {
    if (at + 16 > dynamic_bytes) fail("wgmma reads at %zu of %zu bytes", at, dynamic_bytes);
    else if (!is_seen[at / 16]) fail("wgmma reads at %zu what it does not see yet", at);
    else return dynamic_begin + at;
    return nullptr;
}

// D = A B + D of a warp's 16 rows of m64nNk16. Which lane holds what, and where the elements of B lie in shared memory, is told in
// the PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Operation": A and D have the fragments of mma.m16n8k16, and
// the rows of each 8 x 8 matrix of B, which holds columns of x, follow one another.
static void multiply_together(Fiber* lanes, size_t number) {
    const Product& first = lanes[0].products[number];
    size_t start = (first.b & 0x3fff) << 4, along_k = (first.b >> 16 & 0x3fff) << 4, along_n = (first.b >> 32 & 0x3fff) << 4;
    if (first.b >> 46) return fail("wgmma of a swizzled matrix");
    float a[16][16], b[16][MOST_COLUMNS];
    for (int lane = 0; lane < WARP; lane++) {
        const Product& one = lanes[lane].products[number];
        if (one.b != first.b) return fail("lanes of a warp give wgmma different matrices");
        for (int i = 0; i < 8; i++)
            a[(lane >> 2) + (i % 4 < 2 ? 0 : 8)][(lane & 3) * 2 + (i & 1) + (i < 4 ? 0 : 8)] = of_bfloat16(one.a[i / 2], i & 1);
    }
    for (int n = 0; n < first.columns; n++)
        for (int k = 0; k < 16; k += 8) {
            const char* row = seen(start + k / 8 * along_k + n / 8 * along_n + n % 8 * 16);
            if (row == nullptr) return;
            for (int i = 0; i < 8; i++) b[k + i][n] = of_bfloat16(((const unsigned*)row)[i / 2], i & 1);
        }
    for (int lane = 0; lane < WARP; lane++) {
        Product& one = lanes[lane].products[number];
        for (int i = 0; i < one.columns / 2; i++) {
            int row = (lane >> 2) + (i % 4 < 2 ? 0 : 8), column = i / 4 * 8 + (lane & 3) * 2 + (i & 1);
            float sum = 0.0f;
            for (int k = 0; k < 16; k++) sum += a[row][k] * b[k][column];
            *one.sums[i] += sum;
        }
        one.is_done = true;
    }
}

// Lets those go on for whom `thread` was the last to wait. Returns how many they are.
static int release(int thread) {
    Wait what = fibers[thread].wait;
    if (what != FOR_BLOCK && what != FOR_WARP && what != FOR_PRODUCT && what != FOR_GROUP) return 0;
    int size = what == FOR_BLOCK ? (int)fibers.size() : what == FOR_GROUP ? GROUP : WARP;
    int begin = thread / size * size, end = begin + size;
    if (end > (int)fibers.size()) return 0;
    for (int i = begin; i < end; i++)
        if (fibers[i].wait != what) return 0;
    if (what == FOR_PRODUCT) multiply(&fibers[begin]);
    if (what == FOR_GROUP && at_once)
        for (int i = begin; i < end; i += WARP) multiply_together(&fibers[i], fibers[i].products.size() - 1);
    for (int i = begin; i < end; i++) fibers[i].wait = RUNS;
    return end - begin;
}

static void fail_for_good() {
    int one = 0, other = 0, threads = (int)fibers.size();
    while (fibers[one].wait == ENDED) one++;
    while (other < threads - 1 && fibers[other].wait == fibers[one].wait) other++;
    fail("no thread can go on: thread %d %s, thread %d %s", one, WAITS[fibers[one].wait], other, WAITS[fibers[other].wait]);
}

// A block to its end. `previous_ends` is called when nothing can go on without the kernel before.
static void run_block(bool backward, const std::function<void()>& previous_ends) {
    int threads = (int)fibers.size();
    for (Fiber& fiber : fibers) {
        getcontext(&fiber.begin);
        fiber.begin.uc_stack.ss_sp = fiber.stack.get();
        fiber.begin.uc_stack.ss_size = STACK;
        fiber.begin.uc_link = nullptr;
        makecontext(&fiber.begin, enter, 0);
        fiber.wait = RUNS, fiber.has_begun = fiber.has_waited = false;
        fiber.may_multiply = false, fiber.groups = 0;
        fiber.copies.clear(), fiber.products.clear(), fiber.unseen.clear();
    }
    is_seen.assign(dynamic_bytes / 16 + 1, false);
    auto thread_at = [&](int place) { return backward ? threads - 1 - place : place; };
    bool is_before = true;
    for (int place = 0;;) {  // before it no thread can go on
        while (place < threads && fibers[thread_at(place)].wait != RUNS) place++;
        if (place == threads) {
            int ended = 0, waits = 0;
            for (Fiber& fiber : fibers) ended += fiber.wait == ENDED, waits += fiber.wait == FOR_PREVIOUS;
            if (ended == threads) break;
            if (waits == 0) return fail_for_good();
            if (is_before) previous_ends();
            is_before = false;
            for (Fiber& fiber : fibers)
                if (fiber.wait == FOR_PREVIOUS) fiber.wait = RUNS, fiber.has_waited = true;
            place = 0;
            continue;
        }
        int next = thread_at(place);
        current = next;
        threadIdx = {(unsigned)next, 0, 0};
        resume(fibers[next]);
        if (!failure.empty()) return;
        if (int released = release(next)) place = released == WARP ? thread_at(backward ? next | 31 : next & ~31) : 0;
    }
    for (int i = 0; i < threads; i++)
        if (!fibers[i].has_waited) return fail("thread %d has not waited for the kernel before", i);
}

inline bool is_untouched(const char* at, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)at[i] != NONE) return false;
    return true;
}

// Memory between guards, which a sanitizer sees. Without one, a write into a guard is seen afterwards.
struct Memory {
    size_t bytes;
    std::unique_ptr<char, decltype(&std::free)> all;

    explicit Memory(size_t bytes)
        : bytes(bytes), all((char*)std::aligned_alloc(256, (bytes + 2 * GUARD + 255) & ~255), &std::free) {
        std::memset(all.get(), NONE, bytes + 2 * GUARD);
#ifdef __SANITIZE_ADDRESS__
        __asan_poison_memory_region(all.get(), GUARD);
        __asan_poison_memory_region(begin() + bytes, GUARD);
#endif
    }

    Memory(Memory&&) = default;

    ~Memory() { unlock(); }

    char* begin() const { return all.get() + GUARD; }

    void unlock() const {
#ifdef __SANITIZE_ADDRESS__
        if (all) __asan_unpoison_memory_region(all.get(), bytes + 2 * GUARD);
#endif
    }

    bool is_whole() const {
        unlock();
        return is_untouched(all.get(), GUARD) && is_untouched(begin() + bytes, GUARD);
    }
};

static void run(const Kernel& kernel, dim3 grid, dim3 block, size_t shared, const std::vector<Argument>& given, bool backward) {
    if (given.size() != kernel.elements.size())
        return fail("%zu arguments for %zu parameters", given.size(), kernel.elements.size());
    size_t count = given.size();
    std::vector<Memory> memories;
    std::vector<char*> addresses;
    for (size_t i = 0; i < count; i++) {
        bool is_pointer = kernel.elements[i] > 0;
        if ((given[i].role != NUMBER) != is_pointer || (given[i].role == RESULT) != (kernel.elements[i] > 1))
            return fail("argument %zu is not what parameter %zu wants", i, i);
        memories.emplace_back(given[i].bytes);
        addresses.push_back(memories[i].begin());
        if (is_pointer) std::memcpy(addresses[i], given[i].data, given[i].bytes);
    }
    std::vector<void*> values;
    for (size_t i = 0; i < count; i++)
        values.push_back(kernel.elements[i] ? (void*)&addresses[i] : (void*)&given[i].number);
    body = [&] { kernel.call(values.data()); };
    at_once = backward;
    gridDim = grid, blockDim = block;
    fibers = std::vector<Fiber>(block.x);
    for (Fiber& fiber : fibers) fiber.stack.reset(new char[STACK]);
    auto previous_ends = [&] {
        for (size_t i = 0; i < count; i++) {
            if (given[i].role == PREVIOUS) std::memcpy(addresses[i], given[i].data, given[i].bytes);
            if (given[i].role == RESULT && !is_untouched(addresses[i], given[i].bytes))
                fail("argument %zu is written before the kernel before has ended", i);
        }
    };
    unsigned blocks = grid.x * grid.y * grid.z;
    for (unsigned i = 0; i < blocks && failure.empty(); i++) {
        unsigned number = backward ? blocks - 1 - i : i;
        blockIdx = {number % grid.x, number / grid.x % grid.y, number / grid.x / grid.y};
        for (size_t at = 0; at < count; at++)
            if (given[at].role == PREVIOUS || given[at].role == RESULT) std::memset(addresses[at], NONE, given[at].bytes);
        *one_byte() = 0;
        std::memset(&__start_block_shared, NONE, &__stop_block_shared - &__start_block_shared);
        Memory dynamic(shared);
        dynamic_begin = dynamic.begin(), dynamic_bytes = shared;
        run_block(backward, previous_ends);
        if (!dynamic.is_whole()) fail("a write outside its %zu bytes of shared memory", shared);
        for (size_t at = 0; at < count; at++) {
            if (given[at].role != RESULT) continue;
            size_t size = kernel.elements[at];
            for (size_t one = 0; one < given[at].bytes / size; one++) {
                if (is_untouched(addresses[at] + one * size, size)) continue;
                std::memcpy((char*)given[at].data + one * size, addresses[at] + one * size, size);
                given[at].writes[one]++;
            }
        }
    }
    for (size_t at = 0; at < count; at++)
        if (!memories[at].is_whole()) fail("a write outside the %zu bytes of argument %zu", given[at].bytes, at);
    fibers.clear();
    if (!failure.empty()) failure += " (block " + std::to_string(blockIdx.x) + ", " + std::to_string(blockIdx.y) + ", " +
                                     std::to_string(blockIdx.z) + ")";
}

}  // namespace emulated

inline void __syncthreads() { emulated::wait(emulated::FOR_BLOCK); }
inline void __syncwarp() { emulated::wait(emulated::FOR_WARP); }

inline size_t __cvta_generic_to_shared(const void* at) { return (const char*)at - emulated::dynamic_begin; }

// Instructions by their names, with operands in the order of their text.
namespace ptx {

inline void griddepcontrol_wait() { emulated::wait(emulated::FOR_PREVIOUS); }

inline void griddepcontrol_launch_dependents() {}

inline void ld_global_v4_u32(unsigned& a, unsigned& b, unsigned& c, unsigned& d, const void* at) {
    const uint4& found = *(const uint4*)at;
    a = found.x, b = found.y, c = found.z, d = found.w;
}

inline void ld_global_f32(float& found, const void* at) { found = *(const float*)at; }

inline void cvt_rn_bf16x2_f32(unsigned& found, float high, float low) {
    found = emulated::to_bfloat16(high) << 16 | emulated::to_bfloat16(low);
}

inline void prmt_b32(unsigned& found, unsigned a, unsigned b, unsigned selector) {
    uint64_t bytes = (uint64_t)b << 32 | a;
    unsigned all = 0;
    for (int i = 0; i < 4; i++) {
        unsigned picked = selector >> (4 * i) & 15, byte = (unsigned)(bytes >> (8 * (picked & 7)) & 0xff);
        if (picked & 8) byte = byte & 0x80 ? 0xff : 0;  // the sign alone
        all |= byte << (8 * i);
    }
    found = all;
}

inline void mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(float& d0, float& d1, float& d2, float& d3, unsigned a0,
                                                                unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1,
                                                                float& c0, float& c1, float& c2, float& c3) {
    emulated::Fiber& self = emulated::fibers[emulated::current];
    if (&c0 != &d0 || &c1 != &d1 || &c2 != &d2 || &c3 != &d3) emulated::fail("mma.sync here adds to its operand C only");
    self.sums[0] = &d0, self.sums[1] = &d1, self.sums[2] = &d2, self.sums[3] = &d3;
    self.a[0] = a0, self.a[1] = a1, self.a[2] = a2, self.a[3] = a3, self.b[0] = b0, self.b[1] = b1;
    emulated::wait(emulated::FOR_PRODUCT);
}

// `from` is not read where no byte is copied.
inline void cp_async_cg_shared_global(unsigned to, const void* from, int size, unsigned bytes) {
    using namespace emulated;
    if (to % size || (uintptr_t)from % size || bytes > (unsigned)size || (size_t)to + size > dynamic_bytes) {
        fail("cp.async of %u of %d bytes to %u of %zu", bytes, size, to, dynamic_bytes);
        stop();
    }
    char* at = dynamic_begin + to;
    std::memset(at, at_once ? 0 : NONE, size);
    is_seen[to / 16] = false;
    fibers[current].unseen.push_back(to / 16);
    if (at_once)
        std::memcpy(at, from, bytes);
    else
        fibers[current].copies.push_back({at, (const char*)from, bytes});
}

inline void cp_async_wait_all() {
    for (const emulated::Copy& one : emulated::fibers[emulated::current].copies) {
        std::memset(one.to, 0, 16);
        std::memcpy(one.to, one.from, one.bytes);
    }
    emulated::fibers[emulated::current].copies.clear();
}

inline void fence_proxy_async_shared_cta() {
    emulated::Fiber& self = emulated::fibers[emulated::current];
    if (!self.copies.empty()) return;  // they are written later
    for (unsigned at : self.unseen) emulated::is_seen[at] = true;
    self.unseen.clear();
}

inline void wgmma_fence_sync_aligned() { emulated::fibers[emulated::current].may_multiply = true; }

template <int COLUMNS, class Operands, size_t... I>
inline void multiply_together(const Operands& all, std::index_sequence<I...>) {
    using namespace emulated;
    Fiber& self = fibers[current];
    const int sums = sizeof...(I);
    if (!self.may_multiply) return fail("wgmma.mma_async without wgmma.fence");
    if (std::get<sums + 5>(all) != 1 || std::get<sums + 6>(all) != 1 || std::get<sums + 7>(all) != 1 || std::get<sums + 8>(all))
        return fail("wgmma.mma_async here adds A B to D, as they are");
    self.products.push_back({{&std::get<I>(all)...},
                             {std::get<sums>(all), std::get<sums + 1>(all), std::get<sums + 2>(all), std::get<sums + 3>(all)},
                             std::get<sums + 4>(all), COLUMNS, self.groups, false});
    wait(FOR_GROUP);
}

template <class... Operands>
inline void wgmma_mma_async_sync_aligned_m64n32k16_f32_bf16_bf16(Operands&&... all) {
    multiply_together<32>(std::forward_as_tuple(all...), std::make_index_sequence<16>());
}

template <class... Operands>
inline void wgmma_mma_async_sync_aligned_m64n64k16_f32_bf16_bf16(Operands&&... all) {
    multiply_together<64>(std::forward_as_tuple(all...), std::make_index_sequence<32>());
}

inline void wgmma_commit_group_sync_aligned() {
    emulated::Fiber& self = emulated::fibers[emulated::current];
    self.groups++;
    self.may_multiply = false;
}

// All but the last `most` groups are done. Products that are not done at once are done here, by the first lane that waits.
inline void wgmma_wait_group_sync_aligned(int most) {
    using namespace emulated;
    const Fiber& self = fibers[current];
    Fiber* lanes = &fibers[current / WARP * WARP];
    for (size_t i = 0; i < self.products.size(); i++)
        if (!self.products[i].is_done && self.products[i].group < self.groups - most) multiply_together(lanes, i);
}

}  // namespace ptx

static const emulated::Kernel* kernel_of(const char* name) {
    static const std::vector<emulated::Kernel> known = emulated::kernels();
    for (const emulated::Kernel& one : known)
        if (!std::strcmp(one.name, name)) return &one;
    return nullptr;
}

// In a block of this kernel; 0 if there is no such kernel.
extern "C" int most_threads(const char* name) {
    const emulated::Kernel* found = kernel_of(name);
    return found == nullptr ? 0 : found->most_threads;
}

// Of a kernel that is there, in whole warps. nullptr, or what went wrong.
extern "C" const char* launch(const char* name, const unsigned* grid, unsigned threads, size_t shared,
                              const emulated::Argument* arguments, int count, int backward) {
    emulated::failure.clear();
    dim3 blocks = {grid[0], grid[1], grid[2]};
    emulated::run(*kernel_of(name), blocks, {threads, 1, 1}, shared, {arguments, arguments + count}, backward);
    return emulated::failure.empty() ? nullptr : emulated::failure.c_str();
}
