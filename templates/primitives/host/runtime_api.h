// The interface of the emulator that the host implementation of the primitives requires.
#pragma once
#include <cstddef>
#include <cstdint>

#define EMULATOR_API __attribute__((visibility("default")))

namespace emulator {

// A location in the kernel's source: line and file name in one word; or, with line 0, the address of an instruction.
struct Site {
  uint64_t bits = 0;  // 0: unknown
  static Site instruction(void const* address) { return {reinterpret_cast<uint64_t>(address)}; }
  int line() const { return int(bits >> 48); }
};

// Used as the default of a parameter: the location of the call.
struct Here : Site {
  Here(char const* file = __builtin_FILE(), int line = __builtin_LINE())
      : Site{reinterpret_cast<uint64_t>(file) + (uint64_t(line) << 48)} {}
};

struct Index {
  unsigned x, y, z;
};

// The running CUDA thread, as visible to kernels.
struct ThreadIndex {
  Index index;
  uint32_t linear, lane, warp;
};
extern EMULATOR_API ThreadIndex* current;
extern EMULATOR_API Index block_index, block_dim, grid_dim;

// ---- warps and blocks

EMULATOR_API void barrier_sync(int id, int threads, Site site);  // threads 0: all threads of the block
EMULATOR_API void barrier_arrive(int id, int threads, Site site);
EMULATOR_API void syncwarp(uint32_t mask, Site site);
EMULATOR_API void setmaxnreg(int registers, Site site);
EMULATOR_API uint32_t active_mask();
enum class Shuffle { index, up, down, exclusive_or };
EMULATOR_API uint64_t shuffle(uint32_t mask, uint64_t value, int source, int width, Shuffle mode, Site site);
enum class Reduction { ballot, add, minimum, maximum, signed_minimum, signed_maximum, bit_and, bit_or, bit_xor };
EMULATOR_API uint32_t reduce(uint32_t mask, uint32_t value, Reduction reduction, Site site);
EMULATOR_API void backoff(Site site);
[[noreturn]] EMULATOR_API void trap(char const* reason, Site site);

// ---- shared memory and tensor cores

EMULATOR_API unsigned char* dynamic_shared();
EMULATOR_API uint32_t shared_address(void const* p, Site site);
EMULATOR_API void ldmatrix(uint32_t* r, int matrices, bool trans, uint32_t address, Site site);
EMULATOR_API void stmatrix(uint32_t address, uint32_t const* r, int matrices, bool trans, Site site);
enum class Element { bf16, fp16, tf32 };
EMULATOR_API void mma_m16n8k16(float* d, uint32_t const* a, uint32_t const* b, Element element, Site site);
EMULATOR_API void mma_m16n8k8(float* d, uint32_t const* a, uint32_t const* b, Element element, Site site);

// ---- clusters

EMULATOR_API int cluster_rank();
EMULATOR_API int cluster_size();
EMULATOR_API void cluster_arrive(Site site);
EMULATOR_API void cluster_wait(Site site);
EMULATOR_API uint32_t map_shared_rank(uint32_t address, int rank, Site site);
EMULATOR_API void store_async(uint32_t mapped, void const* value, int bytes, uint32_t mapped_barrier, Site site);

// ---- asynchronous copies of a thread

EMULATOR_API void cp_async(uint32_t dst, void const* src, int bytes, int src_bytes, Site site);
EMULATOR_API void cp_async_commit();
EMULATOR_API void cp_async_wait(int groups_in_flight);

// ---- atomics. A read-modify-write accesses the memory itself, between begin and end.

enum class Order { relaxed, acquire, release, acq_rel };
EMULATOR_API void modify_begin(void const* p, int bytes, Order order, Site site);
EMULATOR_API void modify_end(void const* p, bool changed, Order order, Site site);
EMULATOR_API uint64_t atomic_load(void const* p, int bytes, Order order, Site site);
EMULATOR_API void atomic_store(void* p, uint64_t value, int bytes, Order order, Site site);
EMULATOR_API void threadfence();

// ---- sm_90: mbarrier, bulk copies, warpgroups

EMULATOR_API void mbarrier_init(uint32_t barrier, int arrivals, Site site);
EMULATOR_API void mbarrier_inval(uint32_t barrier, Site site);
EMULATOR_API void mbarrier_arrive(uint32_t barrier, Site site);
EMULATOR_API void mbarrier_arrive_cluster(uint32_t mapped, int expected_bytes, Site site);
EMULATOR_API void mbarrier_expect_tx(uint32_t barrier, int bytes, Site site);
EMULATOR_API bool mbarrier_test_wait(uint32_t barrier, int parity, Site site);
EMULATOR_API void mbarrier_wait(uint32_t barrier, int parity, Site site);
// Loads are written to the blocks of a cluster whose rank's bit is set, or to this block.
constexpr int kThisBlock = 0x10000;
EMULATOR_API void bulk_load(uint32_t dst, void const* src, int bytes, uint32_t barrier, int blocks, Site site);
EMULATOR_API void bulk_to_block(uint32_t mapped, uint32_t src, int bytes, uint32_t mapped_barrier, Site site);
EMULATOR_API void bulk_store(void* dst, uint32_t src, int bytes, Site site);
EMULATOR_API void bulk_add(float* dst, uint32_t src, int bytes, Site site);
EMULATOR_API void bulk_commit();
EMULATOR_API void bulk_wait(int groups_in_flight);
EMULATOR_API void bulk_wait_read(int groups_in_flight);
struct Coordinates {
  int rank;
  int at[5];  // innermost first
};
EMULATOR_API void tma_load(uint32_t dst, void const* map, uint32_t barrier, Coordinates const& box, int blocks,
                           Site site);
EMULATOR_API void tma_store(void const* map, uint32_t src, Coordinates const& box, Site site);
EMULATOR_API void fence_proxy_async();
EMULATOR_API void fence_proxy_async_global();
EMULATOR_API void fence_mbarrier_init();
EMULATOR_API void wgmma_fence();
EMULATOR_API void wgmma_commit(Site site);
EMULATOR_API void wgmma_wait(int groups_in_flight, Site site);
// `a_registers` (4) or the descriptor `a`; majors as in wgmma.cuh: 0 is K, 1 is MN.
struct WgmmaOperands {
  float* d;
  uint32_t const* a_registers;
  uint64_t a, b;
  int n, a_major, b_major;
  Element element;
  bool accumulate;
};
EMULATOR_API void wgmma(WgmmaOperands const& operands, Site site);

// ---- sm_100: tensor memory, and products in it

EMULATOR_API bool elect_one(Site site);
EMULATOR_API void tcgen05_alloc(uint32_t destination, int columns, Site site);
EMULATOR_API void tcgen05_dealloc(uint32_t address, int columns, Site site);
EMULATOR_API void tcgen05_relinquish_alloc_permit(Site site);
// `a` is a descriptor, or an address in tensor memory.
struct Tcgen05Operands {
  uint32_t d, instruction;
  uint64_t a, b;
  bool a_in_tensor_memory, accumulate;
};
EMULATOR_API void tcgen05_mma(Tcgen05Operands const& operands, Site site);
EMULATOR_API void tcgen05_commit(uint32_t barrier, Site site);
EMULATOR_API void tcgen05_ld(void* r, int registers, uint32_t address, Site site);
EMULATOR_API void tcgen05_st(uint32_t address, void const* r, int registers, Site site);
EMULATOR_API void tcgen05_wait_ld(Site site);
EMULATOR_API void tcgen05_wait_st(Site site);
EMULATOR_API void tcgen05_fence_before_thread_sync();
EMULATOR_API void tcgen05_fence_after_thread_sync();

}  // namespace emulator
